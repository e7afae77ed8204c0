"""Results are matched with the rows that were sent by ID, and never two to one."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.exceptions import UserError

from pydantic_ai_batch.rows.records import RowResult, by_id, reconcile

from .files import PATIENT


def result(name: str) -> RowResult[str]:
    return RowResult(id=name, status='ok', output=name)


def test_a_row_is_ok_if_it_was_answered():
    assert result('a').ok
    assert not RowResult[str](id='a', status='truncated', text='cut o').ok


def test_a_record_can_be_pickled():
    assert pickle.loads(pickle.dumps(result('a'))) == result('a')


def test_results_by_id_keep_their_order():
    assert list(by_id([result('b'), result('a')])) == ['b', 'a']


def test_a_repeated_id_is_refused_by_name():
    with pytest.raises(UserError, match="more than one result for 'a', 'b'"):
        by_id([result(name) for name in 'abcab'])
    with pytest.raises(UserError, match="more than one result for 'a'"):
        reconcile(['a'], [result('a'), result('a')])


def test_an_id_that_was_sent_twice_is_refused_by_name():
    with pytest.raises(UserError, match="More than one row was sent as 'a'"):
        reconcile(['a', 'b', 'a'], [])


@PATIENT
@given(st.lists(st.sampled_from('abcdef'), unique=True), st.lists(st.sampled_from('abcdefgh'), unique=True))
def test_every_id_that_was_sent_is_there_in_order_and_the_others_apart(sent: list[str], came: list[str]):
    results = [result(name) for name in came]
    reconciled = reconcile(sent, results)
    assert reconciled.rows == [(name, result(name) if name in came else None) for name in sent]
    assert reconciled.unknown == [one for one in results if one.id not in sent]
