"""Writes goldens.json: renders of the templates beside this file by transformers 5.24.0.

    pip install transformers==5.24.0 jinja2 && python generate.py [MORE_TEMPLATES_FOLDER OUTPUT]

Digests are the first 16 hex digits of the SHA-256 of a render; "error" where Python raises.
"""
import copy
import datetime
import glob
import hashlib
import json
import os
import sys

from transformers.utils import chat_template_utils as C

HERE = os.path.dirname(os.path.abspath(__file__))


class Clock:
    """strftime_now: 1735735296 seconds after 1970, UTC."""

    @staticmethod
    def now():
        return datetime.datetime(2025, 1, 1, 12, 41, 36)


C.datetime = Clock


def S(content):
    return {"role": "system", "content": content}


def U(content, **more):
    return {"role": "user", "content": content, **more}


def A(content, **more):
    return {"role": "assistant", "content": content, **more}


def T(content, **more):
    return {"role": "tool", "content": content, **more}


def text(words):
    """Prose and code without a corpus: a fixed walk over a few words."""
    parts = ["def f(x):\n    return x\n", "the quick ", "brown fox; ", "“zürich” ", "天气 ", "<b>&amp;</b>\t", "{{ no }} ", "\n\n"]
    state, out = 1, []
    for _ in range(words):
        state = (state * 1103515245 + 12345) % 2**31
        out.append(parts[(state >> 16) % len(parts)])
    return "".join(out)


TOOLS = {
    "none": None,
    "empty": [],
    "two": [
        {"type": "function", "function": {"name": "get_weather", "description": "Get <b>weather</b> & \"temp\" — 天气 😀", "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "City 'name'"}, "unit": {"type": "string", "enum": ["c", "f"], "default": "c"}, "n": {"type": "integer", "default": 3}, "tags": {"type": "array", "items": {"type": "string"}}, "x": {"type": "number", "default": 1.0}, "o": {"type": "object", "properties": {}}}, "required": ["city"]}}},
        {"type": "function", "function": {"name": "noop", "description": "d", "parameters": {"type": "object", "properties": {}}}},
    ],
}
ARGUMENTS = {"city": "Zürich \"x\" <y>", "n": 1, "x": 1.5, "big": 12345678901234567890, "huge": 10**60, "e": 1e-7, "f": 2.0, "l": [], "d": {}, "b": True, "z": None, "nl": "a\nb\t\u0001\u007f\u2028é"}
CALL = [{"id": "call_abc1", "type": "function", "function": {"name": "get_weather", "arguments": ARGUMENTS}}]
CALL_TEXT = [{"id": "call_abc1", "type": "function", "function": {"name": "get_weather", "arguments": json.dumps(ARGUMENTS)}}]
CALL9 = [{**CALL[0], "id": "abcdefghi"}]
MESSAGES = {
    "u": [U("Hello")], "su": [S("You are é helpful."), U("Hi\n\nthere  ")], "sua": [S("s"), U("q"), A("a")],
    "multi": [S("s"), U("q1"), A("a1"), U("q2"), A("a2"), U("q3")],
    "ws": [U("  lead and trail \n\n")], "pyws": [U("\x1c\x1f a \x85\u00a0"), A("\x1c<think>\x1d\n\x1er\n</think>\x1f\n\nb\x1c"), U("c")],
    "empty": [U("")], "emptymsgs": [], "html": [U("<b>&amp; \"quotes\" 'single' </b>")], "sys2": [S("a"), S("b"), U("c")],
    "noalt": [U("a"), U("b")], "astart": [A("x"), U("y")], "think": [U("q"), A("<think>\nreason\n</think>\n\nans"), U("q2")],
    "thinkfield": [U("q"), A("ans", reasoning_content="because"), U("q2")], "thinkfield2": [U("q"), A("ans", thinking="because")],
    "thinklast": [U("q"), A("ans", reasoning_content="\nbecause\n")],
    "parts": [U([{"type": "text", "text": "part1"}, {"type": "text", "text": " part2 'x' \"y\" \n é\u0001"}])],
    "partsimg": [U([{"type": "text", "text": "x"}, {"type": "image"}])], "sysparts": [{"role": "system", "content": [{"type": "text", "text": "sp"}]}, U("c")],
    "tool": [S("s"), U("weather?"), A("", tool_calls=CALL), T('{"t": 20}', tool_call_id="call_abc1", name="get_weather"), A("20C"), U("thx")],
    "toolstr": [U("weather?"), A("", tool_calls=CALL_TEXT), T("20", tool_call_id="call_abc1"), U("ok")],
    "toolnone": [U("weather?"), A(None, tool_calls=CALL), T("20", tool_call_id="call_abc1")],
    "tool9": [U("weather?"), A("", tool_calls=CALL9), T("20", tool_call_id="abcdefghi"), A("done"), U("ok")],
    "tool2": [U("w"), A("text", tool_calls=CALL + CALL), T("1"), T("2")], "dev": [{"role": "developer", "content": "dev"}, U("hi")],
    "badrole": [{"role": "alien", "content": "x"}], "name": [U("x", name="bob")], "nullc": [U("q"), A(None)], "surr": [U("😀\ufffd \u0000 x")],
    "jinja": [U("{{ 7*7 }} {% raw %}")], "num": [U(5)], "float": [U(1e-7)], "list": [U([1.0, None, True, "it's"])],
    "big": [S("You are helpful.")] + [(U if i % 2 == 0 else A)(text(40 + i)) for i in range(20)],
}
EXTRAS = {"": {}, "et0": {"enable_thinking": False}, "et1": {"enable_thinking": True}, "re": {"reasoning_effort": "high"}, "ds": {"date_string": "01 Jan 2025"}}
FULL = {"tool+two+gp+", "think+none+gp+et0", "parts+none++"}
CONTINUED = [[U("q"), A("The answer is")], [U("q"), A("  trailing space ")], [U("q"), A("<think>\nhm\n</think>\n\nSo")], [U("only user")], [U("q"), A("")]]


def cases():
    for messages in MESSAGES:
        for tools in TOOLS:
            for prompt in (True, False):
                for extra in EXTRAS:
                    if tools == "none" or extra in ("", "et0"):
                        yield f"{messages}+{tools}+{'gp' if prompt else ''}+{extra}", messages, tools, prompt, extra


def digest(render):
    return hashlib.sha256(render.encode("utf-8")).hexdigest()[:16]


def goldens(path):
    source = open(path, newline="").read()
    template = C._compile_jinja_template(source)
    digests, full = [], {}
    for name, messages, tools, prompt, extra in cases():
        context = {"messages": MESSAGES[messages], "tools": TOOLS[tools], "documents": None, "add_generation_prompt": prompt, "bos_token": "<BOS>", "eos_token": "<EOS>", **EXTRAS[extra]}
        try:
            render = template.render(**copy.deepcopy(context))
        except Exception:
            digests.append("error")
            continue
        digests.append(digest(render))
        if name in FULL:
            full[name] = render
    continued = []
    for messages in CONTINUED:
        try:
            continued.append(C.render_jinja_template([messages], chat_template=source, continue_final_message=True)[0][0])
        except Exception:
            continued.append(None)
    return {"digests": digests, "full": full, "continued": continued}


def main():
    folder, output = (sys.argv[1], sys.argv[2]) if len(sys.argv) > 2 else (HERE, os.path.join(HERE, "goldens.json"))
    templates = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.jinja"))):
        templates[os.path.basename(path)] = goldens(path)
    data = {"messages": MESSAGES, "tools": TOOLS, "extras": EXTRAS, "cases": list(cases()), "continuable": CONTINUED, "templates": templates}
    with open(output, "w") as file:
        json.dump(data, file, ensure_ascii=False, separators=(",", ":"))
        file.write("\n")
    for name, template in templates.items():
        print(name, len(template["digests"]), "cases,", template["digests"].count("error"), "errors")


main()
