#!/usr/bin/env python3
"""Validates texts made under schemas, by Python's jsonschema: validate.py SCHEMAS TEXTS

SCHEMAS is a JSON list; each line of TEXTS is a JSON list of an index into it and a text. Prints the first
texts that are not JSON or not valid, and how many were; exits 1 if any was, 77 if there is no jsonschema."""
import json
import sys

try:
    import jsonschema
except ImportError:
    print("skipped: python3-jsonschema is not installed")
    sys.exit(77)

with open(sys.argv[1], encoding="utf-8") as f:
    schemas = json.load(f)
checkers = [jsonschema.Draft202012Validator(s, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
            for s in schemas]
bad = total = 0
seen = set()
with open(sys.argv[2], encoding="utf-8") as f:
    for line in f:
        index, text = json.loads(line)
        total += 1
        seen.add(index)
        try:
            error = jsonschema.exceptions.best_match(checkers[index].iter_errors(json.loads(text)))
            why = error.message if error else None
        except ValueError as e:
            why = f"not JSON: {e}"
        if why:
            bad += 1
            if bad <= 10:
                print(f"schema {index}: {json.dumps(schemas[index], ensure_ascii=False)[:300]}\n  {text[:300]!r}\n  {why[:300]}")
missing = set(range(len(schemas))) - seen
if missing:
    print(f"no text for schemas {sorted(missing)[:20]}")
print(f"{total - bad} of {total} texts valid, for {len(seen)} of {len(schemas)} schemas")
sys.exit(1 if bad or missing else 0)
