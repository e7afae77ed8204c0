"""The answer of a fake provider when a test gives none."""

from __future__ import annotations

import json

from pydantic_ai_batch.testing.answers import Answer, FakeRequest, FakeTool, FakeToolCall
from pydantic_ai_batch.testing.schema_values import json_value

OUTPUT_TOOL = 'final_result'
"""What the names of Pydantic AI's output tools begin with."""


def auto_answer(request: FakeRequest) -> Answer:
    """Answer a request in the way it asks for, always the same for the same text.

    The first of these that applies:

    1. If there are function tools other than Pydantic AI's output tools, and no tool result is in the conversation
       yet, the first of them is called, so that an agent with tools goes through one round of them.
    2. If the request sets a JSON schema for the text, the text is JSON that satisfies it.
    3. If there is an output tool, or a tool must be called, it is called with arguments that satisfy its schema.
    4. `Answer to: …` with the last user text.
    """
    functions = [tool for tool in request.tools if not tool.name.startswith(OUTPUT_TOOL)]
    if functions and not request.tool_results and request.forced_tool in (None, '*'):
        return _call(functions[0], request)
    if request.output_schema is not None:
        return _json_text(request)
    if tool := _tool_to_call(request):
        return _call(tool, request)
    return f'Answer to: {request.text}'


def _tool_to_call(request: FakeRequest) -> FakeTool | None:
    by_name = {tool.name: tool for tool in request.tools}
    if request.forced_tool in by_name:
        return by_name[request.forced_tool]
    outputs = [tool for tool in request.tools if tool.name.startswith(OUTPUT_TOOL)]
    if outputs:
        return outputs[0]
    return request.tools[0] if request.tools and request.forced_tool else None


def _call(tool: FakeTool, request: FakeRequest) -> FakeToolCall:
    return FakeToolCall(tool.name, json_value({'type': 'object', **tool.parameters}, request.text))


def _json_text(request: FakeRequest) -> str:
    return json.dumps(json_value(request.output_schema or {}, request.text))
