"""Writes the medians of bench/vs-llama-cpp as a table, a CSV file and a page.

usage: vs_llama_cpp.py RAW MANIFEST OUT THREADS ROUNDS STARTS N_PROMPT N_GEN
RAW has lines "preset type side metric value"; OUT.csv and OUT.md are written."""
import csv
import statistics
import sys

raw, manifest, out = sys.argv[1:4]
threads, rounds, starts, n_prompt, n_gen = sys.argv[4:9]

values = {}
for line in open(raw):
    preset, kind, side, metric, value = line.split()
    values.setdefault((preset, kind), {}).setdefault((side, metric), []).append(float(value))


def median(model, side, metric):
    v = values[model].get((side, metric))
    return statistics.median(v) if v else None


def text(v, digits=1):
    return "-" if v is None else f"{v:.{digits}f}"


def ratio(a, b, digits=2):
    return "-" if not a or not b else f"{a / b:.{digits}f}"


speed = [f"| model | prefill {n_prompt}: tern | llama.cpp | ratio "
         f"| decode {n_gen}: tern | llama.cpp | ratio | share of memory bandwidth |",
         "|---|---:|---:|---:|---:|---:|---:|---:|"]
for model in values:
    cells = [" ".join(model)]
    for metric in "prefill", "decode":
        t, p = median(model, "tern", metric), median(model, "peer", metric)
        cells += [text(t), text(p), ratio(t, p)]
    share = median(model, "tern", "share")
    cells.append("-" if share is None else f"{100 * share:.0f} %")
    speed.append("| " + " | ".join(cells) + " |")

names = {"tern": "tern run", "peer-no-warmup-c4096": "llama-completion --no-warmup -c 4096",
         "peer-no-warmup": "llama-completion --no-warmup", "peer": "llama-completion"}
start = ["| one token, whole process | ms | ratio to tern | peak memory, MB |", "|---|---:|---:|---:|"]
for model in values:
    ours = median(model, "tern", "start_ms")
    for side, name in names.items():
        ms = median(model, side, "start_ms")
        if ms is not None:
            rss = median(model, side, "rss_mb")
            what = f"{name} ({' '.join(model)})"
            start.append(f"| {what} | {text(ms, 0)} | {ratio(ms, ours)} | {text(rss, 0)} |")

print("\n".join(speed + [""] + start))

with open(out + ".csv", "w", newline="") as f:
    w = csv.writer(f, lineterminator="\n")
    w.writerow(["preset", "type", "threads", "side", "metric", "median", "min", "max", "n"])
    for model, by in values.items():
        for (side, metric), v in sorted(by.items()):
            figures = [f"{x:.6g}" for x in (statistics.median(v), min(v), max(v))]
            w.writerow([*model, threads, side, metric, *figures, len(v)])

with open(out + ".md", "w") as f:
    f.write("# tern and llama.cpp\n\n")
    f.write(f"Tokens per second, {threads} threads, medians of {rounds} alternating rounds; a ratio\n"
            "above 1 means tern is faster. The models are synthetic: shapes of real models, random weights.\n\n")
    f.write("\n".join(speed) + "\n\n")
    f.write("Start-up: from the start of the process to its end after one token of a short prompt,\n"
            f"the file in the page cache, medians of {starts}.\n\n")
    f.write("\n".join(start) + "\n\nThe machine and the programs:\n\n")
    f.writelines("- " + line for line in open(manifest))
    f.write(f"""
Commands:

    bench/vs-llama-cpp -r {rounds} -s {starts} -t {threads}
    tern bench -m FILE -p {n_prompt} -n {n_gen} -t {threads} -r 1 -o json
    llama-bench -m FILE -p {n_prompt} -n {n_gen} -t {threads} -r 1 -o json
    tern run -m FILE -p "Hello there" -n 1 --raw --temp 0 -t {threads}
    llama-completion -m FILE -p "Hello there" -n 1 -no-cnv --temp 0 -t {threads} [--no-warmup] [-c 4096]
""")
