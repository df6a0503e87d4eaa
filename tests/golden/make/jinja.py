#!/usr/bin/env python3
"""Writes golden.json from cases.json with Python's jinja2 (3.1.6), set up as transformers sets it up.

Left out are results that are not the same twice (addresses, chance) and the few ways in which tern differs on
purpose: see README.md."""
import datetime, json, os, re
import jinja2, jinja2.ext
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_run"), [], [], body).set_lineno(line)

    def _run(self, caller):
        return caller()


def refuse(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "jinja")
env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                    extensions=[Generation, jinja2.ext.loopcontrols])
env.filters["tojson"] = tojson
env.globals["raise_exception"] = refuse
env.globals["strftime_now"] = lambda form: datetime.datetime(2026, 1, 2, 3, 4, 5).strftime(form)
OTHERWISE = re.compile(r"0x[0-9a-f]{6}|\.encode\(|^\{\{ (self|dict|none\[1:\]) |lipsum|autoescape|ud83d|'abc'\['a'")

cases = json.load(open(os.path.join(HERE, "cases.json"), encoding="utf8"))
golden = []
for source in ["{{ " + e + " }}" for e in cases["expressions"]] + cases["templates"]:
    try:
        result = {"text": env.from_string(source).render(**cases["vars"])}
    except Exception as e:
        result = {"error": type(e).__name__}
    if not OTHERWISE.search(source + result.get("text", "")):
        golden.append({"template": source, **result})
json.dump({"vars": cases["vars"], "cases": golden}, open(os.path.join(HERE, "golden.json"), "w", encoding="utf8"), ensure_ascii=False, indent=0)
print(len(golden), "cases,", sum("error" in c for c in golden), "of them errors")
