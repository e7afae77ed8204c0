"""What a lane is: one provider's batch API behind one small interface, and the facts about it in one place."""

from __future__ import annotations

import base64
import logging
import re
import secrets
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from types import TracebackType
from typing import IO, Any, ClassVar, Literal, Self, TypeGuard, TypeVar, cast

from pydantic_ai.exceptions import ModelAPIError, UserError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.models.batch import Batch, BatchRequest, BatchResult, EncodedBatchRequest

from pydantic_ai_batch import compat
from pydantic_ai_batch.codec import Codec
from pydantic_ai_batch.exceptions import ResultIntegrityError
from pydantic_ai_batch.statuses import TERMINAL, JobStatus

from .lines import Stray, list_of_objects

T = TypeVar('T')

_log = logging.getLogger('pydantic_ai_batch')
_unknown_statuses: set[tuple[str, str]] = set()

TAG_KEY = 'pydantic_ai_batch'
"""The name under which a batch's tag stands in the metadata that a provider keeps with the batch."""

_SPOOL_BYTES = 32_000_000
"""The size above which a payload is kept in a temporary file, so that a full batch of 200 MB is not held in memory."""

WIRE_ID_WIDTH = 28
"""The longest wire ID: a tag, a hyphen and up to seven digits. Sizes are counted with it before numbers are given."""


def new_tag() -> str:
    """A tag for one create: 20 random base32 characters, by which its batch is found if the reply is lost."""
    return base64.b32encode(secrets.token_bytes(13)).decode().lower()[:20]


def file_name(tag: str) -> str:
    """What the uploaded file and the provider's display name of the batch with `tag` are called."""
    return f'pab-{tag}'


def line_number(custom_id: str) -> int | None:
    """The place, from 0, of the request with this wire ID in its batch, or `None` if the ID is not one of ours."""
    _, hyphen, number = custom_id.rpartition('-')
    return int(number) if hyphen and number.isdecimal() and number.isascii() else None


_IN_PATHS = re.compile('[A-Za-z0-9_-]+')


def fits_path(text: Any) -> TypeGuard[str]:
    """Whether something is an ID that can stand in a path."""
    return isinstance(text, str) and _IN_PATHS.fullmatch(text) is not None


def path_id(text: str, of: str) -> str:
    """An ID, which a message history may have made up, as it can stand in a path.

    Args:
        text: The ID.
        of: What it is to be an ID of, for the error.

    Raises:
        UserError: It can not.
    """
    if not fits_path(text):
        raise UserError(f'{text!r} is no ID of {of}.')
    return text


def is_in(custom_id: str, tag: str, batch: Batch) -> bool:
    """Whether a wire ID is one of a batch's, whoever wants it."""
    place = line_number(custom_id)
    return place is not None and custom_id == f'{tag}-{place}' and place < (batch.request_count or sys.maxsize)


@dataclass(frozen=True, kw_only=True)
class LaneInfo:
    """The facts about one provider's batch API that queues, checks and documentation go by.

    `None` means that the fact is not known, never that there is no limit.
    """

    name: str
    """The lane's canonical name."""

    title: str
    """What the provider calls it."""

    models: str
    """The framework's model classes it serves."""

    endpoints: tuple[str, ...]
    """The endpoints its batches run, as paths."""

    transport: str
    """How requests get to the provider: `file` or `inline`."""

    max_requests: int | None
    """The most requests in one batch."""

    min_requests: int | None = None
    """The fewest requests that the provider runs a batch of, where one is not enough."""

    max_bytes: int | None
    """The most bytes of requests in one batch, as encoded."""

    models_per_batch: int | None
    """How many models one batch may mix; `0` for any number."""

    statuses: Mapping[str, JobStatus]
    """What its words for the state of a batch mean. A word that is not here counts as running."""

    windows: tuple[timedelta, ...]
    """The windows that a batch can be given to end in; the first is the one used unless another is asked for."""

    window_step: timedelta | None = None
    """Where any window from the shortest to the longest of them is taken, how finely."""

    expires: bool
    """Whether a batch ends when its window has passed, whatever was finished by then."""

    results_kept: timedelta | None
    """How long results can be collected."""

    discount: float | None
    """What is taken off the live price: `0.5` is half. `None` where it differs by model."""

    tag_field: str | None
    """Where a batch carries our tag, which finds it again if the reply to its creation is lost."""

    findable: bool
    """Whether a batch can be looked for, by its tag or otherwise."""

    listing_proves_absence: bool
    """Whether a listing without our tag proves that no batch was made, so that the create may be sent again."""

    ordered: bool
    """Whether the provider promises results in the order of the requests. They are joined by ID all the same."""

    cancellable: bool
    """Whether a batch can be cancelled."""

    listable: bool = True
    """Whether the provider lists its batches."""

    repeatable: str | None = None
    """What makes a create that is sent twice return one batch; `nothing` where nothing does."""

    webhooks: bool | None = None
    """Whether the provider can call back when a batch has ended."""

    results_while_running: bool | None = None
    """Whether results can be read before the batch has ended."""

    results_as: str | None = None
    """How results come: as `files`, a `stream`, `pages`, or inside the batch (`inline`)."""

    allowlist: bool | None = None
    """Whether only some models can be batched, which the provider lists."""

    reports_tier: bool | None = None
    """Whether an answer says that it was run in a batch."""

    refused: str | None = None
    """What a live request can ask for and a batched one cannot."""

    plan: str | None = None
    """The plan that an account needs."""

    key_variables: tuple[str, ...] = ()
    """The environment variables that the key is looked for in."""

    verified: tuple[str, ...] = ()
    """What our code was tried against: `recording`, `spec`, `independent server`, `live`."""

    sources: Mapping[str, str]
    """Where each fact is from, by field name, with how sure it is: recording, spec, documentation, code or guess."""


@dataclass(frozen=True)
class NotRun:
    """Why a batch that ended has no result for a request."""

    reason: str

    again: bool = True
    """Whether another batch may well answer it. It may not where the answer is there and cannot be told apart."""

    culprit: str | None = None
    """The wire ID of another request in the batch that it failed for, where the provider names one."""

    cause: Literal['full_queue', 'invalid'] | None = None
    """Why a batch failed as a whole, where that says how to send its requests again.

    `full_queue`: the provider's queue has no room for it now. `invalid`: a request in it is wrong, and the provider
    does not say which.
    """

    result: BatchResult | None = None
    """What the provider said, as the result of the request: its outcome if it is not sent again."""

    def because_of(self, request_id: str) -> Self:
        """The same with the request that the batch failed for under the name that the user gave it."""
        return replace(self, reason=f'{self.reason} The other request is {request_id!r}.')


def is_run(result: BatchResult) -> bool:
    """Whether the request of a result was run."""
    return result.status in ('succeeded', 'errored')


def sent_back(batch: Batch, result: BatchResult) -> NotRun:
    """What the end of a batch means for a request if the provider's queue had no room for it; it said `result`."""
    reason = f'Batch {batch.id!r} had no room in the queue of the provider.'
    return NotRun(reason, again=False, cause='full_queue', result=result)


def failed_unnamed(batch: Batch, result: BatchResult) -> NotRun:
    """What it means if a request in the batch is wrong and the provider does not say which; it said `result`."""
    reason = f'Batch {batch.id!r} failed for requests that are not named.'
    return NotRun(reason, again=False, cause='invalid', result=result)


class NotCreated(Exception):
    """A create failed before the provider was asked to make a batch, as while its file was uploaded.

    The provider's error is the cause. Trying again costs nothing twice.
    """


class NotReadYet(NotCreated):
    """The provider is still reading what was uploaded, before it makes a batch of it. The message says what."""


class ListingIncomplete(Exception):
    """The provider's listing could not be read far enough back to tell whether a batch exists."""


UNKNOWN_TIME = datetime(1970, 1, 1, tzinfo=UTC)
"""The time of a batch's creation where the provider gives none that can be read."""


def listed_batches(data: Any, *, key: str = 'id') -> list[dict[str, Any]]:
    """The batches of a page of a listing, each with an ID under `key`.

    Raises:
        ListingIncomplete: It is no list of batches. A page that says nothing must not prove that there is no batch.
    """
    items = list_of_objects(data)
    if not isinstance(data, list) or len(items) != len(cast('list[Any]', data)):
        raise ListingIncomplete('The provider answered with something that is no listing.')
    if not all(isinstance(item.get(key), str) and item[key] for item in items):
        raise ListingIncomplete('The provider listed batches without IDs.')
    return items


def called(name: str, listed: Iterable[tuple[Any, T]]) -> list[T]:
    """The batches of a whole listing that have a name, of those that are listed with theirs.

    Raises:
        ListingIncomplete: None has, and one does not show its name, so that it may be the one.
    """
    listed = list(listed)
    found = [batch for shown, batch in listed if shown == name]
    if not found and not all(isinstance(shown, str) for shown, _ in listed):
        raise ListingIncomplete('The provider listed batches without names.')
    return found


class Undecided(Exception):
    """A batch that may be the one looked for is running, and shows whose it is only when it has ended."""


@dataclass
class Sought:
    """What a batch is looked for by, if nobody knows whether it was created."""

    tag: str
    """The tag that it carries."""

    group: str
    """The group of its requests."""

    count: int = 0
    """How many requests it has."""

    receipt: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the lane did for it so far, such as the file it uploaded, so that no step is done twice."""


class Payload(Sought):
    """The encoded requests of one batch, in the provider's own framing, on their way to it.

    Requests are framed as they are added, into memory or, above 32 MB, a temporary file, so neither the list of their
    bodies nor a second copy of them is needed. It is closed when the batch was created or refused.
    """

    def __init__(self, lane: Lane, group: str, tag: str | None = None) -> None:
        super().__init__(tag or new_tag(), group)
        self.size = len(lane.prefix) + len(lane.suffix)
        """Its bytes so far, as they are sent."""
        self.entries: list[int] = []
        """The requests in a journal, in their order, if there is one."""
        self.maybe_doubled = False
        """Whether what stands between us and the provider may have created a second batch of it, unseen by us."""
        self._lane = lane
        self._file = tempfile.SpooledTemporaryFile[bytes](max_size=_SPOOL_BYTES)
        self._file.write(lane.prefix)
        self._sealed = False

    def add(self, body: bytes, entry: int | None = None, *, wire_id: str | None = None) -> str:
        """Add a request's encoded body, and what it is in a journal, and return its ID on the wire.

        That is made of the tag, unless another one is given.
        """
        wire_id = wire_id or f'{self.tag}-{self.count}'
        framed = self._lane.frame(wire_id, body)
        if self.count:
            framed = self._lane.separator + framed
        self._file.write(framed)
        self.size += len(framed)
        self.count += 1
        if entry is not None:
            self.entries.append(entry)
        return wire_id

    def open(self) -> IO[bytes]:
        """The payload as a file, from its start."""
        if not self._sealed:
            self._file.write(self._lane.suffix)
            self._sealed = True
        self._file.seek(0)
        return self._file

    def close(self) -> None:
        """Let go of the memory or the file that the requests are in."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _is_between(window: timedelta, info: LaneInfo) -> bool:
    """Whether a window is taken without being named."""
    return (
        info.window_step is not None
        and min(info.windows) <= window <= max(info.windows)
        and not window % info.window_step
    )


def _hours(window: timedelta) -> str:
    return f'{window.total_seconds() / 3600:g}'


@dataclass
class Lane(ABC):
    """One provider's batch API, through the client that a model holds.

    A lane sends each call once and retries nothing: what a failure means, and when to try again, is decided above it.
    Its errors are the framework's: a [`ModelHTTPError`][pydantic_ai.exceptions.ModelHTTPError] with the provider's
    answer, a [`ModelConnectionError`][pydantic_ai.exceptions.ModelConnectionError] with the phase the transport
    failed in.
    """

    model: Model
    """The model whose client the calls are made with."""

    codec: Codec = field(repr=False)
    """Turns the model's requests into provider bodies, and provider bodies into responses."""

    asked_window: timedelta | None = field(default=None, init=False)
    """The window that batches are asked to end in; `None` is the lane's own."""

    _windowed: dict[str, str] = field(default_factory=dict[str, str], init=False, repr=False, compare=False)
    """Group keys with that window in them."""

    info: ClassVar[LaneInfo]

    complete: ClassVar[str | None] = None
    """The word for a batch that has a result for each of its requests, where its counts may be late or missing."""

    wire_ids: ClassVar[re.Pattern[str]] = re.compile('[A-Za-z0-9_-]{1,64}')
    """What the ID of a request in a batch may be, where a caller gives it."""

    wire_ids_are: ClassVar[str] = '1 to 64 letters, digits, hyphens and underscores'
    """The same in words."""

    prefix: ClassVar[bytes] = b''
    separator: ClassVar[bytes] = b'\n'
    suffix: ClassVar[bytes] = b'\n'

    @property
    def max_requests(self) -> int:
        """The most requests in one batch of this model, which may know a lower limit than its lane's."""
        return min(self.info.max_requests or sys.maxsize, self.model.batch_max_requests or sys.maxsize)

    @property
    def max_bytes(self) -> int:
        """The most bytes of requests, as `request_size` counts them, in one batch of this model."""
        return self.room(None)

    @property
    def scope(self) -> str:
        """What its groups and its batch IDs are unique in: the lane and, of models of the user's own, the provider."""
        return f'{self.info.name}/{self.model.system}'

    def room(self, max_bytes: int | None) -> int:
        """The bytes of requests that fit in a batch of `max_bytes`, as `request_size` counts them.

        What encloses the requests takes some of it. The limits of the lane and of the model cap any number.
        """
        limit = self.info.max_bytes or sys.maxsize
        enclosed = min(max_bytes or limit, limit) - len(self.prefix) - len(self.suffix) + len(self.separator)
        return min(enclosed, self.model.batch_max_bytes or sys.maxsize)

    def ask(self, window: timedelta | None) -> Self:
        """Have batches end in a window, and return the lane; `None` leaves it the lane's own.

        Raises:
            UserError: The lane has no such window.
        """
        info = self.info
        if window is not None and window not in info.windows and not _is_between(window, info):
            hours = [_hours(taken) for taken in sorted(info.windows)]
            taken = (
                f'a whole number of hours from {hours[0]} to {hours[-1]}'
                if info.window_step
                else f'{" or ".join(hours)} hours'
            )
            raise UserError(
                f'`window` must be {taken} for {info.title}, and not {_hours(window)}.'
                if hours
                else f'`window` cannot be set for {info.title}.'
            )
        self.asked_window = window if window is not None and window != info.windows[0] else None
        return self

    def window_of(self, group: str) -> timedelta | None:
        """The window that a batch of a group is created with; `None` if it never ends by itself."""
        if not self.info.expires:
            return None
        hours = compat.window_of(group)
        return timedelta(hours=hours) if hours is not None else self.info.windows[0]

    def _in_window(self, group: str) -> str:
        """A group key with the window in it that was asked for."""
        if self.asked_window is None:
            return group
        if (windowed := self._windowed.get(group)) is None:
            hours = round(self.asked_window.total_seconds() / 3600)
            windowed = self._windowed[group] = compat.with_window(group, hours)
        return windowed

    @property
    def model_reference(self) -> str:
        """The name by which the framework finds a model of this class again."""
        return self.model.model_id

    async def encode(self, request: BatchRequest) -> EncodedBatchRequest:
        """Encode a request as the model would send it live."""
        encoded = await self.codec.encode(self.model, request)
        return encoded if self.asked_window is None else replace(encoded, group=self._in_window(encoded.group))

    async def decode(self, result: BatchResult, request: BatchRequest) -> ModelResponse:
        """Decode a result as the model would read it live, or raise the error that it would raise live."""
        return await self.codec.decode(self.model, result, request)

    async def outcome(self, result: BatchResult | NotRun, request: BatchRequest) -> ModelResponse:
        """The response to a request that its batch is done with, or the error that it failed with."""
        if isinstance(result, NotRun):
            if result.result is None:
                error_class = ModelAPIError if result.again else ResultIntegrityError
                raise error_class(self.model.model_name, result.reason)
            result = result.result
        return await self.decode(result, request)

    async def identity(self) -> str:
        """The group of this model's requests: a digest of its endpoint and credential, and what else they share."""
        return self._in_window(await self.codec.group(self.model))

    @cached_property
    def _overhead(self) -> int:
        return len(self.frame('x' * WIRE_ID_WIDTH, b'')) + len(self.separator)

    def request_size(self, body: bytes) -> int:
        """The bytes that a request adds to a batch."""
        return len(body) + self._overhead

    @abstractmethod
    def frame(self, custom_id: str, body: bytes) -> bytes:
        """A request's body as it stands in a batch."""

    @abstractmethod
    async def create(self, payload: Payload) -> Batch:
        """Create a batch of the requests in `payload`, tagged with its tag. The create call itself is made once.

        Raises:
            NotCreated: The provider was not asked to make a batch yet.
            ModelAPIError: It was, and answered with an error or not at all.
        """

    def is_repeatable(self, payload: Payload) -> bool:
        """Whether a create whose reply was lost makes no second batch if it is sent again soon, by the provider's word.

        What `LaneInfo.repeatable` says in words may be less than that: a guess, or a part of what a create does.
        """
        return False

    @abstractmethod
    async def status(self, batch: Batch) -> Batch:
        """The batch as the provider describes it now."""

    @abstractmethod
    def results(self, batch: Batch) -> AsyncGenerator[BatchResult | Stray]:
        """Stream the results of a batch that ended, as just read from `status`, in any order."""

    def readable(self, batch: Batch) -> int:
        """How many results an ended batch should have, by the provider's own count; 0 where it does not say.

        That is none if it failed, whatever it counts.
        """
        word, done = self.word(batch), compat.counted(batch)
        if self.info.statuses.get(word) == 'failed':
            return 0
        return max(done, batch.request_count) if word == self.complete else done

    def lacks_results(self, batch: Batch, results: int, run: int) -> bool:
        """Whether an ended batch may have more results than were read, so that a request without one may have been run.

        Args:
            batch: The batch as just read from `status`.
            results: How many of its requests a result was read of.
            run: How many of those results are of requests that were run.
        """
        if results >= batch.request_count:
            return False
        # Some also list what was not run, and do not count it.
        readable = self.readable(batch)
        if self.info.statuses.get(self.word(batch)) == 'failed':
            return run < readable
        if compat.is_counted(batch):
            # A count of fewer than were read is an old one.
            return run != readable
        # The files may be there later than its end, and nobody says how much is to be in them.
        return True

    def unlisted(self, batch: Batch, custom_id: str) -> BatchResult | NotRun:
        """What an ended batch means for a request that its results do not list."""
        status = self.info.statuses.get(self.word(batch))
        if status == 'expired':
            return BatchResult(custom_id=custom_id, status='expired')
        if status == 'canceled':
            return BatchResult(custom_id=custom_id, status='canceled')
        if status == 'failed':
            failure = self.failure(batch, custom_id)
            return failure or NotRun(f'Batch {batch.id!r} failed, and the provider does not say why.')
        # After an end that is not known, only the provider's count can say that it was not run.
        again = status is not None or not self.word(batch) or compat.is_counted(batch)
        return NotRun(f'Batch {batch.id!r} ended without a result for the request.', again=again)

    def failure(self, batch: Batch, custom_id: str) -> BatchResult | NotRun | None:
        """What the failure of a batch means for a request in it; `None` if the provider does not say why it failed."""
        return None

    @abstractmethod
    async def cancel(self, batch: Batch) -> Batch:
        """Ask the provider to stop the batch, and return it as it is then."""

    @abstractmethod
    async def find(self, payload: Sought, *, since: datetime) -> list[Batch]:
        """The batches that carry the tag of `payload`, oldest first, among those created since.

        Raises:
            ListingIncomplete: The listing ended before that time was reached.
            Undecided: A batch may be one of them, which shows only when it has ended.
        """

    def listing(self) -> AsyncGenerator[Batch]:
        """The batches that the provider has for this model's credential, newest first, of whatever model and program.

        Raises:
            ListingIncomplete: The provider answered with something that is no listing, or has more than can be read.
            UserError: The lane has no listing.
        """
        raise UserError(f'{self.info.title} cannot list its batches.')

    async def recall(self, payload: Sought, *, since: datetime) -> None:
        """Find, by its name, what was uploaded for a batch by a process that ended before it could say so.

        A lane that uploads nothing finds nothing.
        """
        return

    async def discard(self, payload: Sought) -> None:
        """Delete what was uploaded for a payload that no batch was made of; nothing, where a lane uploads nothing."""
        return

    async def clean_up(self, created: Batch, ended: Batch) -> None:
        """Delete the input of a batch that this process created, once all its requests were run.

        Args:
            created: The batch as this process created it, which alone says what may be deleted.
            ended: The batch as it is now.
        """
        return

    def where_to_look(self, payload: Sought) -> str:
        """How a person finds the batch of `payload` at the provider."""
        return f'look for a batch with `{self.info.tag_field}` `{TAG_KEY}` = `{payload.tag}`'

    def job_status(self, batch: Batch) -> JobStatus:
        """Where the batch is, in the words that all lanes share."""
        word = self.info.statuses.get(self.word(batch), 'in_progress')
        if batch.status == 'ended':
            # Known from more than the word, which may be new or late.
            return word if word in TERMINAL else 'ended'
        return 'canceling' if batch.status == 'canceling' else 'submitted' if word == 'submitted' else 'in_progress'

    def word(self, batch: Batch) -> str:
        """The provider's own word for where the batch is."""
        return str((batch.provider_details or {}).get('status') or '')

    def log_unknown_status(self, batch_id: str, word: str) -> None:
        """Say, once for each word, that a provider uses a status that is not known."""
        if (self.info.name, word) not in _unknown_statuses:
            _unknown_statuses.add((self.info.name, word))
            _log.warning('Batch %s has the status %r, which is not known: it counts as running.', batch_id, word)
