#!/usr/bin/env python3
"""Validates generated texts against their schemas with Python's jsonschema: validate.py SCHEMAS TEXTS [N]

SCHEMAS is a JSON list of schemas. Each line of TEXTS is a JSON list: an index into SCHEMAS, and a text. Prints the
first texts that are not JSON or do not match their schema, and their number. Exit status: 0 if all texts are valid,
1 if a text is invalid or if there are texts for fewer than N schemas (default: all), 77 without jsonschema."""
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
want = int(sys.argv[3]) if len(sys.argv) > 3 else len(schemas)
print(f"{total - bad} of {total} texts valid, for {len(seen)} of {len(schemas)} schemas")
if len(seen) < want:
    print(f"no text for schemas {sorted(set(range(len(schemas))) - seen)[:20]}")
sys.exit(1 if bad or len(seen) < want else 0)
