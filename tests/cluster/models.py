"""Three models over two workers with memory for two each: loaded where there is room, further replicas by demand, surplus ones unloaded.
usage: models.py FOLDER [test_name ...]"""
import json
import os
import shutil
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fleet
from fleet import MODEL, Gateway, Process, check, completion, metric, wait_for

folder = sys.argv[1]
started = []
NAMES = ["ada", "bob", "cleo"]


def start(name, *more):
    """Two workers with three models each, and a gateway before them."""
    models = os.path.join(folder, "models")
    os.makedirs(models, exist_ok=True)
    for m in NAMES:
        if not os.path.exists(os.path.join(models, m + ".gguf")):
            shutil.copy(MODEL, os.path.join(models, m + ".gguf"))
    workers = [Process(folder, f"{name}-worker{i}", ["serve", "--models-dir", models, "--models-max", "2", "--threads", "1", "--ctx", "1024", "--max-seqs", "4", "--drain-timeout", "1s"]).start()
               for i in range(2)]
    started.extend(workers)
    for w in workers:
        wait_for(lambda: w.get("/health")[0] == 200)
    g = Gateway(folder, f"{name}-gateway", "--peers", ",".join(w.url for w in workers), *more).start()
    started.append(g)
    return g.wait_workers(2), workers


def models(g):
    return {m["name"]: m for m in g.status()["models"]}


def replicas(g):
    return {k: m["replicas"] for k, m in models(g).items()}



def ask(g, model, n=4):
    return g.ask("POST", "/v1/completions", completion("Once upon a time", n, model=model, ignore_eos=True))[0]


def test_demand():
    g, workers = start("demand", "--replica-idle", "1s")
    check("each model is answered", [ask(g, m) for m in NAMES] == [200] * 3)
    check("each has one replica, and none had to go for another", wait_for(lambda: replicas(g) == dict.fromkeys(NAMES, 1), 30), (models(g), [w["loaded"] for w in g.status()["workers"]]))
    check("workers tell their room", all(w["free_models"] in (0, 1) and w["free_bytes"] is not None for w in g.status()["workers"]), g.status()["workers"])
    stop, codes = threading.Event(), []

    def client():
        while not stop.is_set():
            codes.append(ask(g, "cleo", 150))
    threads = [threading.Thread(target=client, daemon=True) for _ in range(24)]
    for t in threads:
        t.start()
    check("under load it gets a second one", wait_for(lambda: replicas(g).get("cleo") == 2, 60), models(g))
    now = models(g)["cleo"]
    check("/status tells the demand", now["demand"] > 0 and now["wanted"] >= 1 and set(now) == {"name", "replicas", "loading", "wanted", "demand", "waiting"}, now)
    stop.set()
    for t in threads:
        t.join(60)
    check("no request failed", set(codes) == {200}, codes[:20])
    check("no other model had to go", replicas(g).get("ada") == 1 and replicas(g).get("bob") == 1, models(g))
    check("a replica that nobody needs is unloaded", wait_for(lambda: replicas(g) == dict.fromkeys(NAMES, 1), 60), models(g))
    m = g.get("/metrics")[1]
    check("/metrics have replicas and actions", 'tern_gateway_model_replicas{model="cleo"} 1' in m and 'tern_gateway_replica_actions_total{action="unload"} 1' in m, [x for x in m.splitlines() if "replica" in x])
    g.stop(5)
    for w in workers:
        w.stop(5)


def test_minimum():
    g, workers = start("minimum", "--replicas-min", "1")
    check("models are loaded in advance, without a request", wait_for(lambda: replicas(g) == dict.fromkeys(NAMES, 1), 60), models(g))
    check("and stay within the memory", all(len(w["loaded"]) <= 2 for w in g.status()["workers"]), g.status()["workers"])
    check("they answer", [ask(g, m) for m in NAMES] == [200] * 3)
    g.stop(5)
    for w in workers:
        w.stop(5)


fleet.run_tests(globals(), started, folder)
