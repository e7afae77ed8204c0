"""The handle of a list of requests that was submitted and is collected later: plain data, without key or payload."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Self, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelConnectionError,
    ModelHTTPError,
    ModelTimeoutError,
    UserError,
)
from pydantic_ai.models.batch import Batch
from pydantic_core import from_json, to_json

from .compat import aware, counts_of
from .exceptions import CreateUnsettled, RequestNotSendable
from .lanes.base import Lane, new_tag
from .lanes.errors import http_error
from .policy import CheckHistory
from .statuses import TERMINAL, JobStatus, combined

VERSION = 2
"""The version of the format that `to_json` writes."""


@dataclass(frozen=True, kw_only=True)
class JobBatch:
    """One batch of a job, as it was last read."""

    batch: Batch
    """The framework's handle of it, which other tools take too."""

    lane: str
    """The lane that it is on."""

    status: JobStatus
    """Where it is."""

    tag: str
    """The tag that it carries at the provider. Request number `n` of it, from 0, has the ID `<tag>-<n>` there."""

    request_ids: tuple[str, ...]
    """The `custom_id`s of its requests, in their order."""

    places: tuple[int, ...] | None = None
    """Where each of them stands in the batch, if it has others too; `None` if these are all, one after another."""

    checked_at: datetime | None = None
    """When its status was read; `None` if it was not since its creation."""

    failed_checks: int = 0
    """How many checks in a row failed in a passing way since then."""

    not_found: int = 0
    """How many checks in a row answered 404 since then."""

    retry_after: float = 0.0
    """Seconds that the provider asked to wait before the next check, when it refused the last one."""

    @classmethod
    def of(
        cls, lane: Lane, batch: Batch, tag: str, request_ids: Sequence[str], places: Sequence[int] | None = None
    ) -> Self:
        """A batch of a lane, and which of its requests are the job's."""
        return cls(
            batch=batch,
            lane=lane.info.name,
            status=lane.job_status(batch),
            tag=tag,
            request_ids=tuple(request_ids),
            places=tuple(places) if places is not None else None,
        )

    @property
    def done(self) -> bool:
        """Whether it is over."""
        return self.status in TERMINAL

    @property
    def counts(self) -> dict[str, int]:
        """The provider's counts of its requests, `total`, `completed` and `failed`; empty where it tells none."""
        return counts_of(self.batch)

    @property
    def result_files(self) -> dict[str, str]:
        """The provider's result files by their kind, where it writes any and the batch has them."""
        details = self.batch.provider_details or {}
        names = ('output_file_id', 'error_file_id', 'responses_file')
        return {name: details[name] for name in names if isinstance(details.get(name), str)}

    @property
    def requests(self) -> Iterator[tuple[str, str]]:
        """The ID of each request at the provider, and its `custom_id`."""
        places = self.places if self.places is not None else range(len(self.request_ids))
        return ((f'{self.tag}-{place}', request_id) for place, request_id in zip(places, self.request_ids, strict=True))

    @property
    def history(self) -> CheckHistory:
        """What its checks came to."""
        return CheckHistory(failed=self.failed_checks, not_found=self.not_found, last_seen=self.checked_at)

    def checked(self, history: CheckHistory) -> Self:
        """The same after a check that failed in a passing way."""
        return replace(self, failed_checks=history.failed, not_found=history.not_found, retry_after=history.retry_after)


@dataclass(frozen=True, kw_only=True)
class Refused:
    """Requests that are in no batch of the job, and why."""

    request_ids: tuple[str, ...]
    """Their `custom_id`s."""

    kind: str
    """The name of the error's class."""

    model_name: str
    """The model they were for."""

    message: str
    """What went wrong."""

    status_code: int | None = None
    """The HTTP status that the provider answered with, if it did."""

    body: Any = None
    """The body of that answer."""

    @classmethod
    def of(cls, error: ModelAPIError, request_ids: Sequence[str]) -> Self:
        """The record of an error."""
        answered = isinstance(error, ModelHTTPError)
        return cls(
            request_ids=tuple(request_ids),
            kind=type(error).__name__,
            model_name=error.model_name,
            message=error.message,
            status_code=error.status_code if answered else None,
            body=_plain(error.body) if answered else None,
        )

    def error(self) -> ModelAPIError:
        """The error, in the class that it was raised in where that is one of the framework's or ours."""
        if self.status_code is not None:
            return http_error(self.model_name, self.status_code, self.body)
        return _REFUSALS.get(self.kind, ModelAPIError)(self.model_name, self.message)


@dataclass(frozen=True, kw_only=True, repr=False)
class BatchJob:
    """A list of requests that was submitted with [`submit_batch`][pydantic_ai_batch.submit_batch].

    It is plain data: it can be pickled or stored as JSON and used in another process. It holds no key and no payload;
    to read answers, `collect_batch` takes the same requests again. Loading it makes no request, so what it says of the
    batches is as old as [`checked_at`][pydantic_ai_batch.BatchJob.checked_at].
    """

    id: str
    """The job's own ID, which no provider knows."""

    model: str
    """The name of the model, which calls that are given none go by."""

    lane: str
    """The lane that it is on."""

    created_at: datetime
    """When it was submitted."""

    batches: tuple[JobBatch, ...]
    """The batches that its requests are in."""

    refused: tuple[Refused, ...] = ()
    """The requests that are in none."""

    order: tuple[str, ...] | None = None
    """The `custom_id`s in the order they were submitted in, if that is not that of `request_ids`."""

    version: int = VERSION
    """The version of this format."""

    @classmethod
    def of(
        cls,
        lane: Lane,
        batches: Sequence[JobBatch],
        created_at: datetime,
        refused: Sequence[Refused] = (),
        order: Sequence[str] | None = None,
    ) -> Self:
        """A job of a lane, under an ID of its own."""
        listed = tuple(request_id for part in (*batches, *refused) for request_id in part.request_ids)
        return cls(
            id=new_tag(),
            model=lane.model_reference,
            lane=lane.info.name,
            created_at=created_at,
            batches=tuple(batches),
            refused=tuple(refused),
            order=tuple(order) if order is not None and tuple(order) != listed else None,
        )

    def __repr__(self) -> str:
        """Short, as a job can have a hundred thousand requests."""
        return (
            f'BatchJob(id={self.id!r}, model={self.model!r}, status={self.status!r}, batches={len(self.batches)}, '
            f'requests={len(self.request_ids)})'
        )

    @property
    def status(self) -> JobStatus:
        """Where the job is: not over while any batch is not, and then how its batches ended."""
        if not self.batches and not self.refused:
            return 'ended'
        return combined(batch.status for batch in self.batches)

    @property
    def done(self) -> bool:
        """Whether every batch is over, so that all results can be collected."""
        return self.status in TERMINAL

    @property
    def checked_at(self) -> datetime | None:
        """When the oldest status of a batch that is not over was read, or, if all are over, the oldest of all.

        `None` if a batch was not checked since its creation.
        """
        times = [batch.checked_at for batch in self.batches if not batch.done] or [
            batch.checked_at for batch in self.batches
        ]
        known = [time for time in times if time is not None]
        return min(known) if known and len(known) == len(times) else None

    @property
    def request_ids(self) -> tuple[str, ...]:
        """The `custom_id`s of all its requests, those that were refused last."""
        return tuple(request_id for part in (*self.batches, *self.refused) for request_id in part.request_ids)

    @property
    def counts(self) -> dict[str, int]:
        """The providers' counts of its requests, added up: `total`, `completed` and `failed`."""
        totals = {'total': 0, 'completed': 0, 'failed': 0}
        for batch in self.batches:
            for name, count in batch.counts.items():
                totals[name] = totals.get(name, 0) + count
        return totals

    def to_json(self) -> str:
        """The job as JSON, which [`from_json`][pydantic_ai_batch.BatchJob.from_json] reads."""
        # What a provider says may hold half a character, which only this writer takes.
        return json.dumps(_JOBS.dump_python(self, mode='json'))

    @classmethod
    def from_json(cls, text: str | bytes) -> BatchJob:
        """A job that `to_json` wrote, in this or an earlier version of this package. Makes no request.

        Raises:
            UserError: It is none, or a later version of this package wrote it.
        """
        try:
            data = json.loads(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise UserError(f'This is no `BatchJob`: {error}. {_PASS}') from error
        version = cast('dict[str, Any]', data).get('version') if isinstance(data, dict) else None
        if not isinstance(version, int):
            raise UserError(f'This is no `BatchJob`: it has no version. {_PASS}')
        if version > VERSION:
            raise UserError(
                f'A later version of `pydantic-ai-batch` wrote this job (format {version}, this one reads up to '
                f'{VERSION}): upgrade the package to collect it.'
            )
        try:
            job = _JOBS.validate_python(data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = '.'.join(map(str, first['loc']))
            raise UserError(f'This is no `BatchJob`: {place}: {first["msg"]}. {_PASS}') from error
        if any(part.places is not None and len(part.places) != len(part.request_ids) for part in job.batches):
            raise UserError(f'This is no `BatchJob`: a batch has more places than requests, or fewer. {_PASS}')
        # It is of this version now, and `to_json` writes no other.
        return replace(_aware(job), version=VERSION)


_REFUSALS: dict[str, Callable[[str, str], ModelAPIError]] = {
    error_class.__name__: error_class
    for error_class in (RequestNotSendable, CreateUnsettled, ModelConnectionError, ModelTimeoutError)
}
"""The errors that a record of one may name: it is the caller's data."""


def _aware(job: BatchJob) -> BatchJob:
    """The job with its times in a zone, whatever was made of it meanwhile."""
    batches = (
        replace(
            part,
            batch=replace(part.batch, created_at=aware(part.batch.created_at)),
            checked_at=aware(part.checked_at) if part.checked_at else None,
        )
        for part in job.batches
    )
    return replace(job, created_at=aware(job.created_at), batches=tuple(batches))


_PASS = 'Pass what `to_json()` returned.'

_JOBS: TypeAdapter[BatchJob] = TypeAdapter(BatchJob)


def _plain(body: object) -> Any:
    """An error's body as what JSON can hold."""
    try:
        return from_json(to_json(body))
    except ValueError:
        return str(body)
