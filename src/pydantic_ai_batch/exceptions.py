"""The errors this package adds to the framework's.

Each is also a [`UserError`][pydantic_ai.exceptions.UserError], where the call has to change, or a
[`ModelAPIError`][pydantic_ai.exceptions.ModelAPIError], where the provider or the network had its say, so that code
that handles a live request's errors handles a batched one's. An error that concerns a batch that exists carries its
plain handle, which [`batch_of`][pydantic_ai_batch.exceptions.batch_of] reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic_ai.exceptions import ModelAPIError, ModelConnectionError, ModelHTTPError, UserError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models.batch import Batch

if TYPE_CHECKING:
    from .batch_job import BatchJob
    from .rows.problems import Problem
    from .rows.records import RowResult

__all__ = (
    'BatchNotCancellable',
    'BatchNotReady',
    'CreateUnsettled',
    'InputProblems',
    'JournalError',
    'JournalMiss',
    'LaneDependencyMissing',
    'LaneNotBuilt',
    'NoBatchLane',
    'ParameterConflict',
    'RequestNotSendable',
    'ResultIntegrityError',
    'ResultUnreadable',
    'ResultsGone',
    'RowFailed',
    'RunChanged',
    'RunStopped',
    'batch_of',
    'job_of',
    'pending_of',
)

_E = TypeVar('_E', bound=Exception)
_BATCH_ATTRIBUTE = '_pydantic_ai_batch_handle'
_JOB_ATTRIBUTE = '_pydantic_ai_batch_job'
_PENDING_ATTRIBUTE = '_pydantic_ai_batch_pending'


class NoBatchLane(UserError):
    """The model's provider has no batch API, or this model cannot be sent through it. The message says why."""


class LaneNotBuilt(NoBatchLane):
    """The model's provider has a batch API, which this package does not serve yet."""


class LaneDependencyMissing(UserError):
    """The SDK of a lane is not installed. The message names the extra that installs it. Other lanes work without."""


def sdk_missing(lane: str) -> LaneDependencyMissing:
    """The error for a lane whose SDK is not installed, which the extra of its name installs."""
    return LaneDependencyMissing(
        f"The SDK of the lane {lane!r} is not installed: `pip install 'pydantic-ai-batch[{lane}]'`."
    )


class JournalError(UserError):
    """The journal cannot be used: it is damaged, cannot be written, or a later version of this package wrote it."""


class JournalMiss(JournalError):
    """A strict journal has requests of an earlier run that nothing has matched, and new ones were about to be sent."""


class InputProblems(UserError):
    """Rows of an input cannot be used as they are. Nothing was sent. The message lists the first of them."""

    problems: Sequence[Problem]
    """Everything that is wrong, in the order of the input."""

    def __init__(self, message: str, problems: Sequence[Problem] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class RunChanged(UserError):
    """A journal has a run of other rows, or of the same rows with other settings. Nothing was sent."""


class ParameterConflict(UserError):
    """A parameter of a request has different values in two places, or under two names. Nothing was sent."""

    parameter: str
    """Its name: `model`, `temperature` or `max_tokens`."""

    row: str | None
    """The ID of the row; `None` if both places are those of the job."""

    places: Mapping[str, Any]
    """The value in each place, by the place in words."""

    def __init__(
        self, message: str, *, parameter: str = '', row: str | None = None, places: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.parameter = parameter
        self.row = row
        self.places = dict(places or {})


class _BatchError(ModelAPIError):
    """An error of ours that keeps all it carries when it is pickled, as by a durable engine that records it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.args, vars(self))


def _rebuilt(error_class: type[_BatchError], args: tuple[Any, ...], state: dict[str, Any]) -> _BatchError:
    error = error_class.__new__(error_class, *args)
    error.__dict__.update(state)
    error.args = args
    return error


class RequestNotSendable(_BatchError):
    """One request that cannot be put into a batch: it is too large for any, or cannot be encoded.

    Nothing was sent for it. The other requests of the call go on.
    """


class ResultUnreadable(_BatchError):
    """The provider returned a result for the request that cannot be read as its response.

    The request ran, and was probably billed, so it is not sent again by itself. `body` holds what the provider
    returned, as text.
    """


class ResultIntegrityError(_BatchError):
    """Results came back that cannot be told apart, so that none of them is given to a request that may not be its own.

    The batch is left as it is, and nothing is sent again by itself.
    """


class RowMismatch(ResultIntegrityError):
    """The answer to a row has the token of another one, with which `verify` marks a sample of rows."""


class ResultsGone(_BatchError):
    """A batch ended with results, by the provider's own count, and the provider returns none of them any more."""


class CreateUnsettled(_BatchError):
    """A batch may or may not exist: the reply to its creation was lost, and the provider's listing cannot tell.

    Its requests are not sent again, as that could pay for them twice. The message says where to look.
    """


class _JobError(_BatchError):
    """An error that concerns a whole job, and carries it as it was last read."""

    job: BatchJob
    """The job as it was last read."""

    def __init__(self, model_name: str, message: str, job: BatchJob) -> None:
        super().__init__(model_name, message)
        self.job = job


class BatchNotReady(_JobError):
    """A job is not over yet, so it cannot be collected, or was not waited for any longer.

    `job` is the job as it is now. Nothing was cancelled: it goes on at the provider.
    """


class BatchNotCancellable(_JobError):
    """A job is over, so there is nothing to cancel, or its provider cannot cancel batches. `job` is as it is now."""


def with_batch(error: _E, batch: Batch) -> _E:
    """Let `error` name the batch it concerns, in a note, and carry its handle.

    The attribute is set on the instance, as most of these errors are the framework's own classes.
    """
    setattr(error, _BATCH_ATTRIBUTE, batch)
    if batch.id not in str(error) and not any(batch.id in note for note in getattr(error, '__notes__', ())):
        error.add_note(f'The request was in batch {batch.id!r}.')
    return error


def with_pending(error: _E, pending: ModelResponse, batch: Batch) -> _E:
    """Let `error` carry the pending response of a request whose batch goes on, and say what it is good for."""
    setattr(error, _PENDING_ATTRIBUTE, pending)
    error.add_note(
        f'Batch {batch.id!r} is left as it is. To collect the answer, run the agent again with '
        '`message_history=[*messages, pending_of(error)]`, where `messages` are those of this run, and `pending_of` is '
        'of `pydantic_ai_batch.exceptions`.'
    )
    return error


def pending_of(error: BaseException) -> ModelResponse | None:
    """The pending response of an agent's request whose batch could not be checked or read, or `None`.

    The batch was left as it is. A run whose message history ends in this response, after the messages of the run that
    failed, collects the answer, and pays for nothing again.
    """
    pending = getattr(error, _PENDING_ATTRIBUTE, None)
    return pending if isinstance(pending, ModelResponse) else None


class RowFailed(_BatchError):
    """A row, or an item, has no answer. The message says why; `result` is its record."""

    result: RowResult[Any]

    @classmethod
    def of(cls, result: RowResult[Any]) -> RowFailed:
        """The error of a row."""
        named = f'{result.error_class}: ' if result.error_class else ''
        error = cls('', f'Row {result.id!r}: {result.status}: {named}{result.error or "it has no answer"}')
        error.result = result
        return error


class RunStopped(_BatchError):
    """A run over rows was stopped before all of them were sent, as more failed, or more was spent, than it may."""


def with_job(error: _E, job: BatchJob) -> _E:
    """Let the error of a row of a list carry the job with which its batch, which goes on, is collected."""
    setattr(error, _JOB_ATTRIBUTE, job)
    error.add_note(
        f'Batch {job.batches[0].batch.id!r} is left as it is. To collect its answers, pass `job_of(error)`, of '
        '`pydantic_ai_batch.exceptions`, to `collect_batch`, with the requests that it names.'
    )
    return error


def job_of(error: BaseException) -> BatchJob | None:
    """The job with which a batch is collected that a list call could not check or read, or `None`."""
    return getattr(error, _JOB_ATTRIBUTE, None)


def submitted_times(resubmissions: int, batch: Batch) -> str:
    """How often a request was submitted that failed in the end."""
    return f'It was submitted {resubmissions + 1} times, the last in {batch.id!r}.'


def brief(error: BaseException) -> str:
    """What an error comes to in a log line: nothing that the provider said, which may quote what it was sent."""
    if isinstance(error, ModelHTTPError):
        code = error.provider_error_code or error.provider_error_type
        return f'{type(error).__name__}: status {error.status_code}' + (f', {code}' if code else '')
    if isinstance(error, ModelConnectionError | _BatchError | UserError) or not isinstance(error, ModelAPIError):
        return f'{type(error).__name__}: {error}'
    return type(error).__name__


def batch_of(error: BaseException) -> Batch | None:
    """The plain handle of the batch that `error` concerns, with which it can still be collected, or `None`."""
    batch = getattr(error, _BATCH_ATTRIBUTE, None)
    return batch if isinstance(batch, Batch) else None


def is_gone(error: Exception) -> bool:
    """Whether an error says that the provider has a batch, or its results, no more."""
    return isinstance(error, ResultsGone) or (isinstance(error, ModelHTTPError) and error.status_code == 404)


def copy_of(error: _E) -> _E:
    """A copy of `error`, so that each request waiting on one batch raises its own.

    One exception raised in several tasks would collect the tracebacks of all of them. The constructor is not called:
    what it takes is known only to the class, and all it made is in the instance.
    """
    copied = error.__class__.__new__(error.__class__, *error.args)
    copied.__dict__.update(error.__dict__)
    if notes := getattr(error, '__notes__', None):
        copied.__notes__ = list(notes)
    copied.args = error.args
    copied.__cause__, copied.__suppress_context__ = error.__cause__, error.__suppress_context__
    return copied
