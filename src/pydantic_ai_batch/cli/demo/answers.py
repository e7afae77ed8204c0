"""How the fake provider answers the demo: by keywords, so that the output looks as a model's would.

Nothing of this is used with `--live`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pydantic_ai_batch.testing import Answer, FakeRequest, FakeToolCall

from .triage import Category, Sentiment, Triage


@dataclass(frozen=True)
class _Rule:
    pattern: str
    category: Category
    priority: int
    need: str
    """What the ticket comes to, as the start of a sentence without its subject."""


# The first that matches decides. What is dangerous comes first, and last what is said in many kinds of tickets.
_RULES = (
    _Rule('backlinks', Category.SPAM, 4, 'advertises backlinks'),
    _Rule('awaits your approval', Category.SPAM, 4, 'tries an advance-fee scam'),
    _Rule('smoke|burnt', Category.HARDWARE, 1, 'reports a device that smoked'),
    _Rule('swollen|bulging', Category.HARDWARE, 1, 'asks whether a swollen battery is dangerous'),
    _Rule('that was not me', Category.ACCOUNT, 1, 'fears that a stranger uses the account'),
    _Rule('no backup has run', Category.SOFTWARE, 1, 'cannot back up anything since an update'),
    _Rule('loses my notes', Category.SOFTWARE, 2, 'lost notes after a sync'),
    _Rule('two charges', Category.BILLING, 2, 'was charged twice and wants one charge refunded'),
    _Rule('declined', Category.BILLING, 2, 'sees reservations for a payment that was declined'),
    _Rule('returned the', Category.BILLING, 2, 'waits for the refund of a return'),
    _Rule('personal data', Category.ACCOUNT, 2, 'wants all personal data deleted'),
    _Rule('cancel vaultling', Category.BILLING, 3, 'cancels a subscription'),
    _Rule('discount', Category.SALES, 4, 'asks for a student discount'),
    _Rule('before i buy', Category.SALES, 3, 'asks what a product can do before buying'),
    _Rule('back in stock', Category.SALES, 4, 'asks when a product is back in stock'),
    _Rule('best keyboard|feature request', Category.FEEDBACK, 4, 'praises a product'),
    _Rule('neighbour', Category.SHIPPING, 2, 'misses a parcel that is marked as delivered'),
    _Rule('next-day', Category.SHIPPING, 2, 'waits for a parcel that is nine days late'),
    _Rule('home address', Category.SHIPPING, 2, 'wants a parcel sent to another address'),
    _Rule('配送', Category.SHIPPING, 3, 'wants a delivery two weeks later'),
    _Rule('wrong size', Category.SHIPPING, 3, 'got another size than ordered'),
    _Rule('cable was missing', Category.SHIPPING, 4, 'thanks, and lacks a cable'),
    _Rule('crack|arceau cassé', Category.HARDWARE, 2, 'got a broken device'),
    _Rule('drops the network', Category.HARDWARE, 2, 'has a fault that four replies did not solve'),
    _Rule('restarts at', Category.HARDWARE, 2, 'has routers that restart every night'),
    _Rule('has been dead', Category.HARDWARE, 3, 'asks whether water damage is covered'),
    _Rule('druckt', Category.HARDWARE, 3, 'has a printer with wrong colours'),
    _Rule('installer', Category.SOFTWARE, 3, 'cannot finish an installation'),
    _Rule('cursor jumps', Category.SOFTWARE, 3, 'has a cursor that jumps while typing'),
    _Rule('already activated', Category.SOFTWARE, 2, 'has a licence key that is rejected'),
    _Rule('invoice', Category.BILLING, 3, 'needs a correct invoice'),
    _Rule('log in|sesión', Category.ACCOUNT, 2, 'cannot log in'),
)
_UNCLEAR = _Rule('', Category.OTHER, 3, 'does not say what is wrong')

_ANGRY = 'unacceptable|again without|broke everything'
_HAPPY = 'best keyboard|lovely|thank you!|impressive'
_ORDER = r'\b(?:order|commande)\s+(\d{5})|注文番号(\d{5})'
_PRODUCT = r'\b(TB-200|R40|K7|H2|P3|Kilnote|Vaultling)\b'


def answer_triage(request: FakeRequest) -> Answer:
    """Give a triage of the ticket in the request, as the request asks for it: as JSON, or to the output tool."""
    triage = triage_by_keywords(request.text)
    if request.output_schema is not None:
        return triage.model_dump_json()
    return FakeToolCall(request.tools[0].name, triage.model_dump(mode='json'))


def triage_by_keywords(text: str) -> Triage:
    """The triage of a ticket by the words in it."""
    rules = [rule for rule in _RULES if _has(rule.pattern, text)] or [_UNCLEAR]
    # A ticket that counts its points has more than one; any other may just use a word of another rule.
    several = _has(r'^1\. .*^2\. ', text)
    needs = [rule.need for rule in rules[: 3 if several else 1]]
    need = f'{", ".join(needs[:-1])} and {needs[-1]}' if len(needs) > 1 else needs[0]
    priority = min(rule.priority for rule in rules[: len(needs)])
    if _has(_ANGRY, text):
        sentiment = Sentiment.ANGRY
    elif _has(_HAPPY, text):
        sentiment = Sentiment.HAPPY
    else:
        sentiment = Sentiment.WORRIED if priority <= 2 else Sentiment.NEUTRAL
    return Triage(
        category=rules[0].category,
        priority=priority,
        sentiment=sentiment,
        summary=f'{need[0].upper()}{need[1:]}{_details(text)}.',
        needs_human=priority == 1 or several or sentiment is Sentiment.ANGRY or rules[0] is _UNCLEAR,
    )


def _has(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.IGNORECASE | re.MULTILINE | re.DOTALL) is not None


def _details(text: str) -> str:
    """The product and the order that a ticket is about, in parentheses, if it names them."""
    product, order = re.search(_PRODUCT, text), re.search(_ORDER, text, re.IGNORECASE)
    details = [product[1]] if product else []
    if order:
        details.append(f'order {order[1] or order[2]}')
    return f' ({", ".join(details)})' if details else ''
