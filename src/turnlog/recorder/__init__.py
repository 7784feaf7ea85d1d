"""The recorder: turns, steps and tool calls as context managers, for loops of your own.

    with session.turn() as turn:
        turn.user("What is in notes.txt?")
        with turn.step(provider="openai", model="gpt-5") as step:
            step.text("Let me look.")
            step.message("Let me look.", calls=[("call-1", "read", {"path": "notes.txt"})])
            with step.tool_call("call-1") as call:
                call.result("buy milk")

The rule: whatever happens inside, the log stays balanced, every call has its result, and the turn's end says why
it ended. Numbers, pairing, `sourceEventSeqs` and request headers come out as the harnesses write them
(messages-and-agent.md, 2.6), with one difference on purpose: a user message is written when it is given, in the
turn, and not first when a step starts, so that a crash in between does not lose it. Use out of order is a
`RecorderError`, and then nothing was appended. Proved by a table of exceptions at every point of a turn.

Where the session has a storage, the recorder flushes after the user's message, before the first chunk of a
request, before a tool body runs, and at the end of each step and turn. With `async with` the waits run on a
worker thread, where the objects are entered and left: a step's header is then written, and the user's message
durable, when the step is entered.

Every decision that depends on what is open is made under one lock, the session's own. No flush is: a storage
takes that lock while it writes.
"""

from __future__ import annotations

from turnlog.recorder.call import Call
from turnlog.recorder.outcome import end_reason, llm_failure
from turnlog.recorder.plain import CallSpec, Content
from turnlog.recorder.step import Step
from turnlog.recorder.turn import Turn

__all__ = ["Call", "CallSpec", "Content", "Step", "Turn", "end_reason", "llm_failure"]
