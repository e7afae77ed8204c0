"""What is done with the rows of an input: a model, or an agent, and what each row asks it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from pydantic_ai import Agent
from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings
from pydantic_core import to_jsonable_python

from pydantic_ai_batch.capability import BatchModelRequests
from pydantic_ai_batch.clock import SYSTEM_CLOCK, Clock
from pydantic_ai_batch.exceptions import RunChanged
from pydantic_ai_batch.journal import Journal
from pydantic_ai_batch.lanes.base import Lane
from pydantic_ai_batch.settings import BatchSettings
from pydantic_ai_batch.wording import listed

from .agent_requests import AgentRequests
from .base import RowSource
from .identity import find_id_column
from .json_schema import JsonSchema
from .outputs import Outputs
from .parameters import JobParameters, parameter_columns
from .preparing import Prepared, prepare
from .problems import problems_error, unreadable_error
from .prompting import DEFAULT_INPUT_COLUMN, Prompting
from .raw_requests import RawRequests, is_raw
from .row_requests import PromptRequests, RowRequests
from .template import Template
from .verifying import Verification

ModelLike = Model | Agent[Any, Any] | str


@dataclass(frozen=True, kw_only=True)
class RowJob:
    """What is done with every row.

    Raises:
        UserError: Some of it does not go with the rest.
    """

    model: ModelLike | None = None
    """The model, its name, or an agent; `None` if each row names its own model."""

    prompt: str | None = None
    """The template of the prompts; `None` takes them from a column."""

    instructions: str | None = None
    """The instructions of every row."""

    output_type: Any = str
    """What an answer has to be, as an agent takes it."""

    schema: JsonSchema | None = None
    """What holds answers to their JSON schema, where their type is one."""

    verify: int | None = None
    """How many rows have a token in their prompt that has to come back."""

    id_column: str | None = None
    """The column of the IDs. `None` is `id` where there is one, and the number of the row where there is not."""

    input_column: str | None = None
    """The column of the prompts, without a template. `None` is `input`."""

    temperature: float | None = None
    """The temperature of the answers."""

    max_tokens: int | None = None
    """The most tokens of an answer."""

    model_settings: ModelSettings | None = None
    """The other settings of the model."""

    def __post_init__(self) -> None:
        if self.model is not None and not isinstance(self.model, Model | Agent | str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UserError(f'`model` must be a model, its name, or an agent, and not a `{type(self.model).__name__}`.')
        if self.prompt is not None and self.input_column is not None:
            raise UserError('The prompts are made with `prompt`, or taken from `input_column`: leave one of them out.')
        if isinstance(self.model, Agent) and (self.output_type is not str or self.instructions is not None):
            raise UserError('An agent has its own instructions and output type: leave them out here.')
        if self.verify is not None and (isinstance(self.verify, bool) or self.verify < 1):
            raise UserError(f'`verify` must be a number of rows of at least 1, not {self.verify!r}.')
        if self.verify is not None and self.agent is not None:
            raise UserError('`verify` takes a token out of the text of answers, and these have a type: leave it out.')
        if self.prompt is not None and not self.prompt.strip():
            raise UserError('The `prompt` is blank.')

    @cached_property
    def agent(self) -> Agent[Any, Any] | None:
        """The agent whose runs the rows are, if they are."""
        if isinstance(self.model, Agent):
            return self.model
        if self.output_type is str:
            return None
        agent: Agent[Any, Any] = Agent(output_type=self.output_type, instructions=self.instructions)
        if self.schema is not None:
            agent.output_validator(self.schema.check)
        return agent

    @cached_property
    def asked(self) -> Model | str | None:
        """The model, or its name; `None` if each row names its own."""
        if isinstance(self.model, Agent):
            model = self.model.model
            if model is None:
                raise UserError('The agent has no model: give it one, as in `Agent(...)`.')
            return model
        return self.model

    @property
    def model_name(self) -> str | None:
        """The name of the model; `None` if each row names its own."""
        return self.asked.model_id if isinstance(self.asked, Model) else self.asked

    @cached_property
    def outputs(self) -> Outputs:
        """How outputs are kept."""
        output_type: Any = self.model.output_type if isinstance(self.model, Agent) else self.output_type
        return Outputs(output_type)

    def requests(
        self, source: RowSource, settings: BatchSettings, journal: Journal | None, clock: Clock = SYSTEM_CLOCK
    ) -> RowRequests:
        """The requests of an input, which is read if it was not.

        Raises:
            InputProblems: It cannot be read.
            UserError: It has no rows, or a column is not there.
        """
        if (unreadable := unreadable_error(source)) is not None:
            raise unreadable
        if not len(source):
            raise UserError(f'{source.name} has no rows.')
        try:
            return self._requests(source, settings, journal, clock)
        except UserError as error:
            if unreadable := [problem for problem in source.read() if problem.place is None]:
                # A column may be missing for that.
                raise problems_error(source, unreadable) from error
            raise

    def _requests(
        self, source: RowSource, settings: BatchSettings, journal: Journal | None, clock: Clock
    ) -> RowRequests:
        id_column = find_id_column(source, self.id_column)
        parameters = JobParameters(
            model=self.model_name,
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            settings=cast('Mapping[str, Any] | None', self.model_settings),
        )
        if self.prompt is None and self.input_column is None and is_raw(source.columns):
            if self.agent is not None or self.instructions is not None:
                raise UserError(
                    f'The rows of {source.name} are requests as they are sent, with `url` and `body`: instructions and '
                    'output types are in their bodies.'
                )
            if self.verify is not None:
                raise UserError(
                    f'The rows of {source.name} are requests as they are sent, with `url` and `body`, so that `verify` '
                    'can put nothing into their prompts: leave it out.'
                )
            if parameters.resolved.settings:
                raise UserError(
                    f'The rows of {source.name} are requests as they are sent, with `url` and `body`: '
                    f'{listed([f"`{name}`" for name in parameters.resolved.settings])} would change none of them. Set '
                    'it in their bodies.'
                )
            return RawRequests(source, 'custom_id' if self.id_column is None else id_column, parameters)
        prompting = Prompting(
            Template(self.prompt) if self.prompt is not None else None,
            self.input_column or DEFAULT_INPUT_COLUMN,
            self.instructions,
        )
        prompting.check(source.name, source.columns)
        if both := [name for name in parameter_columns(source.columns) if name in prompting.names]:
            raise UserError(
                f'The prompts are made with {listed([f"`{name}`" for name in both])}, and a column of that name sets '
                f'what its row is asked with: rename it in {source.name}, and in the template. Nothing was sent.'
            )
        if self.agent is None:
            sample = None if self.verify is None else Verification.of(source, id_column, self.verify)
            return PromptRequests(source, id_column, parameters, prompting, sample)
        batching = BatchModelRequests(
            max_requests=settings.max_requests or 1_000,
            max_bytes=settings.max_bytes,
            max_resubmissions=settings.max_resubmissions,
            poll_interval=settings.poll_interval,
            max_poll_interval=settings.max_poll_interval,
            window=settings.window,
            journal=journal,
            clock=clock,
        )
        alike = not isinstance(self.model, Agent)
        return AgentRequests(source, id_column, parameters, prompting, self.agent, batching, alike)

    async def prepare(
        self, source: RowSource, requests: RowRequests, ask: Callable[[Lane], Lane] = lambda lane: lane
    ) -> Prepared:
        """Look at every row before anything is sent."""
        return await prepare(source, requests, self.asked, ask)

    def spec(self, source: RowSource) -> dict[str, Any]:
        """What the run is, as a journal keeps it."""
        shape = self.outputs.output_type
        return {
            'input': {'name': source.name, 'digest': source.digest, 'rows': len(source)},
            'model': self.model_name,
            'prompt': self.prompt,
            'instructions': self.instructions,
            'input_column': self.input_column,
            'id_column': self.id_column,
            'temperature': self.temperature,
            'max_tokens': self.max_tokens,
            'model_settings': to_jsonable_python(self.model_settings, fallback=repr),
            'output_type': self.outputs.digest if shape is not str else None,
            'verify': self.verify,
        }


_WORDS = {
    'model': 'the model',
    'prompt': 'the prompt',
    'instructions': 'the instructions',
    'input_column': 'the column of the prompts',
    'id_column': 'the column of the IDs',
    'temperature': '`temperature`',
    'max_tokens': '`max_tokens`',
    'model_settings': 'the settings',
    'verify': 'the number of rows that are verified',
    'output_type': 'the output type',
}


def refuse_changes(path: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with a run that is another one now.

    Raises:
        RunChanged: It is. The message says what changed.
    """
    changed: list[str] = []
    was: dict[str, Any] = before.get('input') or {}
    is_now: dict[str, Any] = now['input']
    if was.get('digest') != is_now['digest']:
        counts = f'{was.get("rows")} rows then, {is_now["rows"]} now'
        same = was.get('rows') == is_now['rows']
        changed.append(f'the input ({counts}{", of other content or in another order" if same else ""})')
    for name, words in _WORDS.items():
        if before.get(name) != now.get(name):
            if name == 'output_type':
                then, today = _shape_of(before), _shape_of(now)
                said = f'{then} then, {today} now' if then != today else f'{today}, which was another one then'
                changed.append(f'{words} ({said})')
                continue
            values = [json.dumps(value, ensure_ascii=False) for value in (before.get(name), now.get(name))]
            short = [value if len(value) <= 60 else f'{value[:57]}…' for value in values]
            changed.append(f'{words} ({short[0]} then, {short[1]} now)')
    if changed:
        raise RunChanged(
            f'{path} has another run: {"; ".join(changed)}. Nothing was sent. Give this run a journal of its own, or '
            'put back what it was to go on with that one.'
        )


def _shape_of(spec: Mapping[str, Any]) -> str:
    """The output type of a run in words: its digest, by which it is known again, tells nobody anything."""
    if spec.get('output_type') is None:
        return 'text'
    command: Mapping[str, Any] = spec.get('command') or {}
    return str(command.get('schema') or command.get('output_type') or 'a type of the program')
