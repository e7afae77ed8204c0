"""A parameter is what every place says that sets it, or it is refused."""

from __future__ import annotations

import pickle
from decimal import Decimal
from itertools import combinations
from typing import Any, cast

import pytest
from pydantic_ai.exceptions import UserError

from pydantic_ai_batch.exceptions import ParameterConflict
from pydantic_ai_batch.rows.parameters import JobParameters, Parameters, resolve

PLACES = ('the row', "the row's settings", 'the job', "the job's settings")
TOKENS = ('max_tokens', 'max_output_tokens', 'max_completion_tokens', 'maxOutputTokens')


def resolved(values: dict[str, dict[str, Any]]) -> Parameters:
    """The parameters of a row, from the values in each place."""
    row, own, job, settings = (values.get(place, {}) for place in PLACES)
    return resolve({'text': 'x', **row, 'settings': own}, 'r1', JobParameters(**job, settings=settings))


@pytest.mark.parametrize('place', PLACES)
@pytest.mark.parametrize(
    ('name', 'value'), [('model', 'openai:gpt-5-mini'), ('temperature', 0.5), ('temperature', 0), ('max_tokens', 7)]
)
def test_a_parameter_may_be_set_in_any_place(place: str, name: str, value: Any):
    parameters = resolved({place: {name: value}})
    assert parameters == (Parameters(value, None) if name == 'model' else Parameters(None, {name: value}))


@pytest.mark.parametrize(('one', 'other'), list(combinations(PLACES, 2)))
@pytest.mark.parametrize(('name', 'values'), [('model', 'ab'), ('temperature', (0, 0.5)), ('max_tokens', (1, 2))])
def test_different_values_in_two_places_are_refused(one: str, other: str, name: str, values: Any):
    first, second = values
    with pytest.raises(ParameterConflict) as caught:
        resolved({one: {name: first}, other: {name: second}})
    error = caught.value
    assert error.parameter == name
    assert error.row == (None if 'row' not in one + other else 'r1')
    assert dict(error.places) == {f'`{name}` of {one}': first, f'`{name}` of {other}': second}
    assert all(part in str(error) for part in (f'`{name}`', one, other))
    assert ("'r1'" in str(error)) == ('row' in one + other)


@pytest.mark.parametrize(('one', 'other'), list(combinations(PLACES, 2)))
def test_equal_values_in_two_places_are_fine(one: str, other: str):
    assert resolved({one: {'temperature': 0}, other: {'temperature': 0.0}}).settings == {'temperature': 0}
    assert resolved({one: {'model': 'a:b'}, other: {'model': 'a:b'}}).model == 'a:b'


@pytest.mark.parametrize('place', [PLACES[0], PLACES[1], PLACES[3]])
@pytest.mark.parametrize(('one', 'other'), list(combinations(TOKENS, 2)))
def test_the_names_of_max_tokens_are_one_parameter(place: str, one: str, other: str):
    assert resolved({place: {one: 9, other: 9}}).settings == {'max_tokens': 9}
    with pytest.raises(ParameterConflict, match='`max_tokens` has different values'):
        resolved({place: {one: 9, other: 8}})


def test_a_conflict_within_the_job_needs_no_row():
    with pytest.raises(ParameterConflict, match=r'^`temperature` has different values'):
        JobParameters(temperature=0.1, settings={'temperature': 0.2})


@pytest.mark.parametrize('text', ['0.5', ' 0.50 ', '5e-1', '.5', '+0.5'])
def test_a_number_as_text_is_a_number(text: str):
    fields = {'temperature': text, 'max_tokens': '100'}
    assert resolve(fields, '1', JobParameters(temperature=0.5)).settings == {'temperature': 0.5, 'max_tokens': 100}


@pytest.mark.parametrize('blank', ['', '  ', None])
def test_what_is_blank_sets_nothing(blank: Any):
    fields: dict[str, Any] = dict.fromkeys((*TOKENS, 'model', 'temperature', 'settings', 'stream'), blank)
    assert resolve(fields, '1', JobParameters(model='a:b', max_tokens=7)) == Parameters('a:b', {'max_tokens': 7})


@pytest.mark.parametrize('value', [100.0, '100.0', Decimal(100), '1e2'])
def test_a_whole_number_may_be_written_with_a_point(value: Any):
    settings = cast('dict[str, Any]', resolve({'max_tokens': value}, '1', JobParameters()).settings)
    assert settings == {'max_tokens': 100}
    assert type(settings['max_tokens']) is int


@pytest.mark.parametrize('place', PLACES)
@pytest.mark.parametrize(
    'value', [0, -1, 1.5, '0', '1.5', 'many', True, [7], 'NaN', float('nan'), float('inf'), '1_000']
)
def test_max_tokens_is_a_whole_number_of_at_least_one(place: str, value: Any):
    with pytest.raises(UserError, match=r'`max_tokens` of .* must be a whole number of at least 1, not'):
        resolved({place: {'max_tokens': value}})


@pytest.mark.parametrize('place', PLACES)
@pytest.mark.parametrize('value', ['hot', True, [0], {}, 'nan', 'inf', float('nan'), float('-inf'), '0,5'])
def test_a_temperature_is_a_number(place: str, value: Any):
    with pytest.raises(UserError, match=r'`temperature` of .* must be a number, not'):
        resolved({place: {'temperature': value}})


@pytest.mark.parametrize('place', PLACES)
def test_a_model_is_a_name(place: str):
    with pytest.raises(UserError, match=r'`model` of .* must be the name of a model'):
        resolved({place: {'model': 7}})


@pytest.mark.parametrize('place', [PLACES[0], PLACES[1], PLACES[3]])
@pytest.mark.parametrize('value', [True, 'true', 1, {}])
def test_stream_is_refused_wherever_it_is(place: str, value: Any):
    with pytest.raises(UserError, match=f'`stream` of {place} cannot be used in a batch'):
        resolved({place: {'stream': value}})


def test_not_to_stream_is_what_a_batch_does():
    assert resolved({'the row': {'stream': False}, "the row's settings": {'stream': False}}).settings is None


def test_an_error_names_the_row():
    with pytest.raises(UserError, match=r"^Row 'r1': `maxOutputTokens` of the row's settings must be .*, not 0\.$"):
        resolved({"the row's settings": {'maxOutputTokens': 0}})


def test_other_settings_of_the_row_go_over_those_of_the_job():
    job = JobParameters(max_tokens=9, settings={'top_p': 0.1, 'seed': 1})
    assert resolve({'settings': '{"top_p":0.2}'}, '1', job).settings == {'top_p': 0.2, 'seed': 1, 'max_tokens': 9}
    assert resolve({'settings': {'logprobs': True}}, '2', job).settings == {
        'top_p': 0.1,
        'seed': 1,
        'logprobs': True,
        'max_tokens': 9,
    }
    assert resolve({}, '3', job).settings == {'top_p': 0.1, 'seed': 1, 'max_tokens': 9}


@pytest.mark.parametrize(
    ('value', 'said'),
    [
        ('{"a":', 'must be a JSON object: not JSON'),
        ('[1]', 'not a JSON object but an array'),
        ('{"a":NaN}', 'NaN'),
        ('{"a":1,"a":2}', 'twice'),
        ([1], r'must be an object, not \[1\]'),
        (7, 'must be an object, not 7'),
    ],
)
def test_the_settings_of_a_row_are_an_object(value: Any, said: str):
    with pytest.raises(UserError, match=f"`settings` of row 'r1' .*{said}"):
        resolve({'settings': value}, 'r1', JobParameters())


def test_nothing_set_is_nothing():
    assert resolve({'text': 'x'}, '1', JobParameters()) == Parameters(None, None)


def test_no_row_can_change_what_another_gets():
    job = JobParameters(settings={'top_p': 0.1})
    cast('dict[str, Any]', resolve({}, '1', job).settings)['top_p'] = 0.9
    assert resolve({}, '2', job).settings == {'top_p': 0.1}


def test_a_conflict_can_be_pickled():
    error = ParameterConflict('said', parameter='model', row='1', places={'here': 'a'})
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.parameter, copy.row, copy.places) == ('said', 'model', '1', {'here': 'a'})
