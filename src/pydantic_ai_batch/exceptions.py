"""The errors this package adds to the framework's.

Each is also a [`UserError`][pydantic_ai.exceptions.UserError], where the call has to change, or a
[`ModelAPIError`][pydantic_ai.exceptions.ModelAPIError], where the provider or the network had its say, so that code
that handles a live request's errors handles a batched one's. An error that concerns a batch that exists carries its
plain handle, which [`batch_of`][pydantic_ai_batch.exceptions.batch_of] reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pydantic_ai.exceptions import ModelAPIError, UserError
from pydantic_ai.models.batch import Batch

if TYPE_CHECKING:
    from .batch_job import BatchJob

__all__ = (
    'BatchNotCancellable',
    'BatchNotReady',
    'CreateUnsettled',
    'LaneNotBuilt',
    'NoBatchLane',
    'RequestNotSendable',
    'ResultIntegrityError',
    'ResultUnreadable',
    'ResultsGone',
    'batch_of',
)

_E = TypeVar('_E', bound=Exception)
_BATCH_ATTRIBUTE = '_pydantic_ai_batch_handle'


class NoBatchLane(UserError):
    """The model's provider has no batch API, or this model cannot be sent through it. The message says why."""


class LaneNotBuilt(NoBatchLane):
    """The model's provider has a batch API, which this package does not serve yet."""


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
    """Let `error` carry the handle of the batch it concerns.

    The attribute is set on the instance, as most of these errors are the framework's own classes.
    """
    setattr(error, _BATCH_ATTRIBUTE, batch)
    return error


def batch_of(error: BaseException) -> Batch | None:
    """The plain handle of the batch that `error` concerns, with which it can still be collected, or `None`."""
    batch = getattr(error, _BATCH_ATTRIBUTE, None)
    return batch if isinstance(batch, Batch) else None


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
