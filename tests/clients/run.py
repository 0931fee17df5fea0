"""The official clients of OpenAI and Anthropic against `glimmer serve` with the built-in model.

In: the path of the program. Out: a line for each test; exit code 1 if one fails.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback

import anthropic
import openai

KEY = "test-key"
OFF = {"chat_template_kwargs": {"enable_thinking": False}}
# Not a parameter of every version of the client.
GREEDY = {"temperature": 0}
USER = [{"role": "user", "content": "Tell me a story about a dog."}]
SCHEMA = {
    "type": "object",
    "properties": {
        "animal": {"type": "string", "enum": ["dog", "cat"]},
        "legs": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["animal", "legs"],
    "additionalProperties": False,
}


def fits(value):
    assert value["animal"] in ("dog", "cat"), value
    assert isinstance(value["legs"], int) and 0 <= value["legs"] <= 9, value


def chat(client):
    answer = client.chat.completions.create(model="any", messages=USER, max_tokens=20, temperature=0, extra_body=OFF)
    assert answer.choices[0].finish_reason == "length", answer
    assert len(answer.choices[0].message.content) > 20, answer
    assert answer.usage.completion_tokens == 20, answer
    assert answer.usage.total_tokens == 20 + answer.usage.prompt_tokens, answer


def chat_stream(client):
    same = dict(model="any", messages=USER, max_tokens=20, temperature=0, extra_body=OFF)
    whole = client.chat.completions.create(**same)
    text, usage = "", None
    for chunk in client.chat.completions.create(**same, stream=True, stream_options={"include_usage": True}):
        text += chunk.choices[0].delta.content or "" if chunk.choices else ""
        usage = chunk.usage or usage
    assert text == whole.choices[0].message.content, (text, whole)
    assert usage.completion_tokens == 20, usage


def chat_tools(client):
    tools = [{"type": "function", "function": {"name": "note", "description": "Notes an animal.", "parameters": SCHEMA}}]
    same = dict(model="any", messages=USER, tools=tools, max_tokens=120, temperature=0, extra_body=OFF,
                parallel_tool_calls=False)
    for choice in ("required", {"type": "function", "function": {"name": "note"}}):
        answer = client.chat.completions.create(**same, tool_choice=choice)
        assert answer.choices[0].finish_reason == "tool_calls", answer
        call = answer.choices[0].message.tool_calls[0]
        assert call.function.name == "note", call
        fits(json.loads(call.function.arguments))
    arguments, names = "", []
    for chunk in client.chat.completions.create(**same, tool_choice="required", stream=True):
        for part in chunk.choices[0].delta.tool_calls or []:
            names += [part.function.name] if part.function.name else []
            arguments += part.function.arguments or ""
    assert names == ["note"], names
    fits(json.loads(arguments))
    history = USER + [
        answer.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "noted"},
    ]
    again = client.chat.completions.create(**{**same, "messages": history}, tool_choice="none")
    assert not again.choices[0].message.tool_calls, again


def chat_schema(client):
    form = {"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA, "strict": True}}
    answer = client.chat.completions.create(model="any", messages=USER, response_format=form, max_tokens=120,
                                            temperature=0, extra_body=OFF)
    fits(json.loads(answer.choices[0].message.content))


def chat_logprobs(client):
    answer = client.chat.completions.create(model="any", messages=USER, logprobs=True, top_logprobs=2, max_tokens=5,
                                            temperature=0, extra_body=OFF)
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == 5 and all(len(t.top_logprobs) == 2 for t in tokens), tokens
    assert tokens[0].logprob == tokens[0].top_logprobs[0].logprob, tokens


def chat_reasoning(client):
    deltas = client.chat.completions.create(model="any", messages=USER, max_tokens=8, temperature=0, stream=True)
    thought = "".join(getattr(c.choices[0].delta, "reasoning_content", None) or "" for c in deltas)
    assert isinstance(thought, str)


def completions(client):
    answer = client.completions.create(model="any", prompt="Once upon a time", max_tokens=8, temperature=0, logprobs=2)
    assert answer.choices[0].text and len(answer.choices[0].logprobs.tokens) == 8, answer
    stream = client.completions.create(model="any", prompt="Once upon a time", max_tokens=8, temperature=0, stream=True)
    assert "".join(c.choices[0].text for c in stream) == answer.choices[0].text


def models(client):
    assert [m.id for m in client.models.list()] == ["storyteller"]
    assert client.models.retrieve("storyteller").id == "storyteller"


def responses(client):
    same = dict(model="any", input="Tell me a story.", instructions="Be brief.", max_output_tokens=20, temperature=0,
                reasoning={"effort": "none"})
    whole = client.responses.create(**same)
    assert whole.status == "incomplete" and len(whole.output_text) > 20, whole
    text, last = "", None
    for event in client.responses.create(**same, stream=True):
        text += event.delta if event.type == "response.output_text.delta" else ""
        last = event
    assert text == whole.output_text and last.type == "response.incomplete", (text, last)
    tools = [{"type": "function", "name": "note", "parameters": SCHEMA, "strict": True}]
    answer = client.responses.create(**{**same, "max_output_tokens": 120}, tools=tools, tool_choice="required",
                                     parallel_tool_calls=False)
    assert answer.output[0].type == "function_call", answer
    fits(json.loads(answer.output[0].arguments))


def refused(client):
    for wrong, param in ((dict(temperature=7), "temperature"), (dict(messages=[]), "messages"),
                         (dict(messages=USER, n=99), "n")):
        try:
            client.chat.completions.create(**{"model": "any", "messages": USER, **wrong})
        except openai.BadRequestError as e:
            assert e.param == param and e.type == "invalid_request_error", e.body
        else:
            raise AssertionError(f"{wrong} was taken")
    try:
        openai.OpenAI(base_url=client.base_url, api_key="wrong", max_retries=0).models.list()
    except openai.AuthenticationError as e:
        assert e.code == "invalid_api_key", e.body
    else:
        raise AssertionError("a wrong key was taken")
    try:
        client.models.retrieve("gpt-4")
    except openai.NotFoundError as e:
        assert e.code == "model_not_found", e.body
    else:
        raise AssertionError("a model that is not there was found")


def messages(client):
    same = dict(model="any", max_tokens=20, extra_body=GREEDY, system="You tell stories.", messages=USER)
    whole = client.messages.create(**same)
    assert whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 20, whole
    with client.messages.stream(**same) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text, (text, whole)
    assert final.stop_reason == "max_tokens", final
    counted = client.messages.count_tokens(model="any", system="You tell stories.", messages=USER)
    assert counted.input_tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens, (counted, whole)
    word = whole.content[0].text.split()[3]
    stopped = client.messages.create(**same, stop_sequences=[word])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", word), stopped


def message_tools(client):
    tools = [{"name": "note", "description": "Notes an animal.", "input_schema": SCHEMA}]
    choice = {"type": "any", "disable_parallel_tool_use": True}
    same = dict(model="any", max_tokens=120, extra_body=GREEDY, tools=tools, tool_choice=choice)
    answer = client.messages.create(**same, messages=USER)
    assert answer.stop_reason == "tool_use", answer
    used = answer.content[-1]
    fits(used.input)
    with client.messages.stream(**same, messages=USER) as stream:
        final = stream.get_final_message()
    fits(final.content[-1].input)
    history = USER + [
        {"role": "assistant", "content": [block.model_dump() for block in answer.content]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": used.id, "content": "noted"}]},
    ]
    again = client.messages.create(model="any", max_tokens=10, tools=tools, tool_choice={"type": "none"}, messages=history)
    assert again.stop_reason in ("end_turn", "max_tokens"), again


def message_errors(client):
    for wrong, error in ((dict(messages=[{"role": "robot", "content": "a"}]), anthropic.BadRequestError),
                         (dict(extra_body={"temperature": 7}), anthropic.BadRequestError)):
        try:
            client.messages.create(**{"model": "any", "max_tokens": 5, "messages": USER, **wrong})
        except error as e:
            assert e.body["error"]["type"] == "invalid_request_error", e.body
        else:
            raise AssertionError(f"{wrong} was taken")
    try:
        anthropic.Anthropic(base_url=client.base_url, api_key="wrong", max_retries=0).messages.create(
            model="any", max_tokens=5, messages=USER)
    except anthropic.AuthenticationError as e:
        assert e.body["error"]["type"] == "authentication_error", e.body
    else:
        raise AssertionError("a wrong key was taken")


OPENAI = [chat, chat_stream, chat_tools, chat_schema, chat_logprobs, chat_reasoning, completions, models, responses, refused]
ANTHROPIC = [messages, message_tools, message_errors]


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as cache:
        server = subprocess.Popen([program, "serve", "--port", "0", "--api-key", KEY], stderr=subprocess.PIPE, text=True,
                                  env={**os.environ, "XDG_CACHE_HOME": cache})
        try:
            address = re.search(r"http://\S+", server.stderr.readline()).group()
            while "is ready" not in server.stderr.readline():
                time.sleep(0.01)
            first = openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0, timeout=120)
            second = anthropic.Anthropic(base_url=address, api_key=KEY, max_retries=0, timeout=120)
            failed = 0
            for client, tests in ((first, OPENAI), (second, ANTHROPIC)):
                for test in tests:
                    try:
                        test(client)
                        print(f"{test.__name__}: ok", flush=True)
                    except Exception:
                        failed += 1
                        print(f"{test.__name__}: FAILED\n{traceback.format_exc()}", flush=True)
            total = len(OPENAI) + len(ANTHROPIC)
            print(f"clients: openai {openai.__version__}, anthropic {anthropic.__version__}")
            print(f"{total - failed} passed, {failed} failed")
        finally:
            server.terminate()
            server.wait(timeout=20)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
