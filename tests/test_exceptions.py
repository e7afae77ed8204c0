"""Errors of this package, and the copies of an error that each of many runs gets."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from pydantic_ai import exceptions as framework
from pydantic_ai.exceptions import ModelAPIError, ModelConnectionError, ModelHTTPError, UserError
from pydantic_ai.models.batch import Batch

from pydantic_ai_batch import exceptions as ours
from pydantic_ai_batch.exceptions import (
    CreateUnsettled,
    LaneNotBuilt,
    NoBatchLane,
    RequestNotSendable,
    ResultUnreadable,
    batch_of,
    copy_of,
    with_batch,
)

BATCH = Batch(
    id='b',
    model_name='m',
    provider_name='p',
    group='g',
    status='ended',
    created_at=datetime(2030, 1, 1, tzinfo=UTC),
    request_count=1,
    provider_details=None,
)


def model_errors() -> Iterator[type[ModelAPIError]]:
    for name, value in inspect.getmembers(framework, inspect.isclass):
        if issubclass(value, ModelAPIError) and not name.startswith('_'):
            yield value


def example(cls: type[ModelAPIError]) -> ModelAPIError:
    if issubclass(cls, ModelHTTPError):
        return ModelHTTPError.for_category(
            None if cls is ModelHTTPError else cast('Any', cls),
            status_code=429,
            model_name='m',
            body={'error': {'code': 'c'}},
            headers={'retry-after': '7'},
            hint='try later',
            provider_error_code='c',
            provider_error_type='t',
        )
    if issubclass(cls, framework.ModelRequestTimeout):
        return cls('m', 5.0)
    if issubclass(cls, ModelConnectionError):
        return cls('m', 'gone', phase='read')
    return cls('m', 'wrong')


@pytest.mark.parametrize('cls', list(model_errors()), ids=lambda cls: cls.__name__)
@pytest.mark.parametrize('pickled', [False, True])
def test_a_copy_of_a_framework_error_is_that_error(cls: type[ModelAPIError], pickled: bool):
    error = example(cls)
    if pickled:
        error = pickle.loads(pickle.dumps(error))
    error.__cause__ = cause = ValueError('why')
    with_batch(error, BATCH)
    copied = copy_of(error)
    assert copied is not error
    assert type(copied) is type(error)
    assert copied.args == error.args
    assert str(copied) == str(error)
    assert vars(copied) == vars(error)
    assert copied.__cause__ is cause
    assert copied.__suppress_context__
    assert copied.__traceback__ is None
    assert batch_of(copied) == BATCH


@pytest.mark.parametrize(
    'error',
    [
        UserError('wrong'),
        CreateUnsettled('m', 'look there'),
        RequestNotSendable('m', 'too large'),
        ResultUnreadable('m', 'odd', body='[]'),
        ValueError('a', 2),
        KeyError('k'),
        TimeoutError(),
        OSError(2, 'gone'),
        RuntimeError('closed'),
        ExceptionGroup('many', [ValueError('one')]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_copy_of_any_error_reads_as_it_does(error: Exception):
    copied = copy_of(error)
    assert type(copied) is type(error)
    assert (copied.args, str(copied), vars(copied)) == (error.args, str(error), vars(error))


def test_an_error_without_a_batch_has_none():
    assert batch_of(ValueError()) is None


@pytest.mark.parametrize('cls', [RequestNotSendable, ResultUnreadable, CreateUnsettled])
def test_what_the_provider_had_a_say_in_is_a_model_error(cls: type[Exception]):
    assert issubclass(cls, ModelAPIError)


@pytest.mark.parametrize('cls', [NoBatchLane, LaneNotBuilt])
def test_what_the_program_has_to_change_is_a_user_error(cls: type[Exception]):
    assert issubclass(cls, UserError)


def test_every_name_that_is_exported_is_there():
    assert [name for name in ours.__all__ if not hasattr(ours, name)] == []


@pytest.mark.parametrize(
    'error',
    [RequestNotSendable('m', 'x'), CreateUnsettled('m', 'x'), ResultUnreadable('m', 'x', body='y'), NoBatchLane('x')],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_pickling_with_their_batch(error: Exception):
    again = pickle.loads(pickle.dumps(with_batch(error, BATCH)))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert batch_of(again) == BATCH
