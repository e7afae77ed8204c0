"""Templates fill in the values of a row, once."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.exceptions import UserError

from pydantic_ai_batch.rows.template import Template

from .files import PATIENT


@pytest.mark.parametrize(
    ('value', 'text'),
    [
        ('as it is ✓', 'as it is ✓'),
        (None, ''),
        ('', ''),
        (True, 'true'),
        (7, '7'),
        (0.5, '0.5'),
        (['ä', 1, None], '["ä",1,null]'),
        ({'a': {'b': 'é'}}, '{"a":{"b":"é"}}'),
        (Decimal('0.000000010'), '0.000000010'),
        (date(2030, 1, 2), '2030-01-02'),
        ({'on': date(2030, 1, 2)}, '{"on":"2030-01-02"}'),
    ],
)
def test_a_value_is_filled_in_as_text_or_as_compact_json(value: Any, text: str):
    assert Template('<{{ x }}>').render({'x': value}) == f'<{text}>'


def test_spaces_in_the_braces_are_optional_and_names_may_have_any_character_but_braces():
    template = Template('{{a}} {{  a }} {{ two words }} {{ a.b }} {{ größe }}')
    assert template.names == ('a', 'two words', 'a.b', 'größe')
    assert template.render({'a': 1, 'two words': 2, 'a.b': 3, 'größe': 4}) == '1 1 2 3 4'


def test_a_value_that_looks_like_a_variable_is_not_filled_in_again():
    assert Template('{{ a }}{{ b }}').render({'a': '{{ b }}', 'b': '{{ a }}'}) == '{{ b }}{{ a }}'


@pytest.mark.parametrize('text', ['{{', '}}', '{{ }}', '{{}}', '{ x }', '{"a": {"b": 1}}', '{{ x }', '{{ {a} }}', ''])
def test_braces_that_form_no_variable_stay_as_they_are(text: str):
    template = Template(text)
    assert template.names == ()
    assert template.render({}) == text


def test_an_unknown_name_is_refused_with_the_columns_and_the_one_that_was_meant():
    with pytest.raises(UserError) as caught:
        Template('{{ textt }} {{ Team }} {{ zzz }} {{ id }}').check(['id', 'text', 'team'])
    assert str(caught.value) == (
        'No column goes by what the template names: `textt` (did you mean `text`?), `Team` (did you mean `team`?), '
        '`zzz`. The columns are `id`, `text`, `team`.'
    )


@pytest.mark.parametrize('expression', ['x | upper', 'a.b', "row['x']", 'f(x)'])
def test_an_expression_is_a_name_that_is_not_there_and_the_error_says_that_only_names_are_taken(expression: str):
    with pytest.raises(UserError, match='Only names are taken between') as caught:
        Template(f'{{{{ {expression} }}}}').check(['x'])
    assert f'`{expression}`' in str(caught.value)


def test_names_that_are_columns_pass():
    Template('{{ a.b }} {{ x | y }}').check(['x | y', 'a.b'])


def test_a_row_that_lacks_a_name_is_no_empty_text():
    with pytest.raises(UserError, match='the row has no `topic`'):
        Template('About {{ topic }}').render({'text': 'x'})


@PATIENT
@given(st.text(), st.text())
def test_any_value_arrives_whole(before: str, value: str):
    text = before.replace('{', '(').replace('}', ')')
    assert Template(text + '{{ x }}').render({'x': value}) == text + value
