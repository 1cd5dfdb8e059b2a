"""``hfdsl mcp``: the tools of ``hfdsl.tools.answers`` over the Model Context Protocol, on stdin and stdout."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode
from pydantic_core import CoreSchema

import hfdsl
from hfdsl.tools.agent_findings import AgentFinding, Place, unusable
from hfdsl.tools.answers import TOOLS, AgentReply, Tool, failed, unanswered

for described in (Place, AgentFinding):
    with_config(ConfigDict(use_attribute_docstrings=True))(described)

INSTRUCTIONS = """\
hfdsl is a typed DSL for RL post-training: typed role functions, a plain Python dataflow, checks before launch. Call \
check after every edit and follow help or patch of each finding until there are none; explain has the rule of a code. \
All tools but explain execute the Python file that they are asked about, as an import does, with your permissions: \
check no file that you would not run.
"""

CONFIG = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class ShortSchema(GenerateJsonSchema):
    """Schemas without titles, which repeat names: a model reads all of them before its first call."""

    def field_title_should_be_set(self, schema: object) -> bool:
        """Never."""
        return False

    def generate(self, schema: CoreSchema, mode: JsonSchemaMode = "validation") -> dict[str, Any]:
        """The schema of a type, without the names and the sentences of its classes."""
        generated = super().generate(schema, mode)
        for definition in (generated, *generated.get("$defs", {}).values()):
            definition.pop("title", None)
            definition.pop("description", None)
        return generated


@dataclass(frozen=True)
class ServedTool:
    """A tool with its schemas; a question is held against the one, and clients hold answers against the other."""

    tool: Tool

    @cached_property
    def questions(self) -> TypeAdapter[Any]:
        """Reads questions, and refuses an argument that there is not: it may have been meant for another size."""
        return TypeAdapter(with_config(CONFIG)(self.tool.asks))

    def as_listed(self) -> types.Tool:
        """The entry of ``tools/list``. A tool that executes the user's code is not read-only."""
        answers: TypeAdapter[Any] = TypeAdapter(with_config(CONFIG)(self.tool.answers))
        return types.Tool(
            name=self.tool.name,
            description=self.tool.description,
            input_schema=self.questions.json_schema(schema_generator=ShortSchema),
            output_schema=answers.json_schema(schema_generator=ShortSchema, mode="serialization"),
            annotations=types.ToolAnnotations(read_only_hint=not self.tool.executes),
        )

    async def call(self, arguments: Mapping[str, Any], patience: float) -> types.CallToolResult:
        """The result of a call, within ``patience`` seconds."""
        try:
            question = self.questions.validate_python(dict(arguments))
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors())
            field_names = ", ".join(field.name for field in fields(self.tool.asks))
            return result(failed(self.tool, unusable(f"{self.tool.name} takes {field_names}; {wrong}")))
        with anyio.move_on_after(patience):
            return await self._answered(asdict(question))
        late = f"no answer within {patience:g} seconds; the process was ended: does the target run when it is imported?"
        return result(failed(self.tool, unanswered(late)))

    async def _answered(self, question: dict[str, Any]) -> types.CallToolResult:
        package = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
        process = await anyio.run_process(
            [sys.executable, "-P", "-m", "hfdsl.tools.answers"],
            input=json.dumps({"tool": self.tool.name, "question": question}).encode(),
            stderr=None,  # the server's own, which clients keep as its log
            env={**os.environ, "PYTHONPATH": path},
            check=False,
        )
        try:
            reply = json.loads(process.stdout)
        except ValueError:
            ended = (
                f"the process ended with exit code {process.returncode} before it answered; see the log of the server"
            )
            return result(failed(self.tool, unanswered(ended)))
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=reply["text"])],
            structured_content=reply["answer"],
            is_error=reply["failed"],
        )


def result(reply: AgentReply) -> types.CallToolResult:
    """A reply of this process."""
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=reply.text)],
        structured_content=asdict(reply.answer),
        is_error=reply.failed,
    )


def server(patience: float) -> Server[Any]:
    """The server with its tools."""
    served = {name: ServedTool(tool) for name, tool in TOOLS.items()}

    async def list_tools(
        context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[tool.as_listed() for tool in served.values()])

    async def call_tool(
        context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        if params.name not in served:
            tool_names = ", ".join(served)
            text = f"there is no tool '{params.name}'; there are: {tool_names}"
            return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)
        return await served[params.name].call(params.arguments or {}, patience)

    return Server(
        "hfdsl",
        version=hfdsl.__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def serve(patience: float) -> None:
    """Serve until the client closes stdin."""

    async def run() -> None:
        async with stdio_server() as (read_stream, write_stream):
            tools = server(patience)
            await tools.run(read_stream, write_stream, tools.create_initialization_options())

    anyio.run(run)
