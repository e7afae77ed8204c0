"""What the fake providers answer to the prompts of the documentation and of the examples."""

from __future__ import annotations

import re
from typing import Any

from pydantic_ai_batch.testing import Answer, FakeError, FakeRequest, FakeToolCall, auto_answer

ANSWERS: dict[str, Any] = {
    'Guten Morgen': 'German',
    'Buenos días': 'Spanish',
    'God morgen': 'Norwegian',
    'The soup was cold, twice.': {'stars': 1, 'about': 'food'},
    'Best waiter in town!': {'stars': 5, 'about': 'service'},
    'Twelve euros for toast?': {'stars': 2, 'about': 'price'},
    'Food, service or price? The soup was cold, twice.': 'food',
    'Food, service or price? Best waiter in town!': 'service',
    'Food, service or price? Twelve euros for toast?': 'price',
    'bread': 'pain',
    'water': 'eau',
    'salt': 'sel',
    'milk': 'Milch',
    'cheese': 'queso',
    'honey': 'mêl',
    'Apfel': 'apple',
    'pomme': 'apple',
    'mela': 'apple',
    'Name a fruit.': 'Quince.',
    'A prompt that is refused.': FakeError(400, 'invalid_prompt', 'The prompt was refused.'),
    'Which country is Lima in?': 'Peru',
    'Which country is Oslo in?': 'Norway',
    'Which country is Hanoi in?': 'Vietnam',
}
"""Answers by the prompt. A `dict` is the arguments of the agent's output tool."""


_VERIFIED = re.compile(r'(.*)\n\nEnd your answer with .* (\[\[row-\w+\]\]) .*')
"""A prompt of the sample of `--verify`."""


def answer(request: FakeRequest) -> Answer:
    """Answer a prompt of the documentation, or any other as the fakes do by themselves."""
    if request.text == 'Overloaded at first.':
        return 'Answered by the second batch.' if request.attempt else FakeError(503, None, 'Overloaded.')
    if (asked := _VERIFIED.fullmatch(request.text)) is not None:
        # As a model does that heeds what it is asked to end with.
        return f'{ANSWERS[asked[1]]}\n{asked[2]}'
    if request.text not in ANSWERS:
        return auto_answer(request)
    given = ANSWERS[request.text]
    return FakeToolCall('final_result', given) if isinstance(given, dict) else given
