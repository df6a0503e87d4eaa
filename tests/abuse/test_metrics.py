"""Numbers that measure: what a metric says happened, happened."""
from abuse import ask, complete, run, serve

PHASES = ("admission", "scheduling", "dispatch", "first_token")


def phase(m, name, what):
    return m[f'tern_phase_seconds_{what}{{phase="{name}"}}']


def test_the_phases_to_the_first_token_follow_each_other():
    s = serve()
    for i in range(5):
        assert complete(s, max_tokens=4, stream=i % 2 == 0).status == 200
    assert complete(s, prompt=7).status == 400                      # refused: it has no phases
    m = s.metrics()
    for p in (*PHASES, "total"):
        assert phase(m, p, "count") == 5, (p, phase(m, p, "count"))
        assert phase(m, p, "sum") > 0, p
    parts = sum(phase(m, p, "sum") for p in PHASES)
    assert abs(parts - phase(m, "total", "sum")) < 1e-4, (parts, phase(m, "total", "sum"))
    assert phase(m, "total", "sum") <= m['tern_e2e_request_latency_seconds_sum{model="tern-tales"}'] + phase(m, "admission", "sum")


def test_every_route_has_its_own_series():
    s = serve()
    body = {"prompt": "Once", "max_tokens": 2}
    routes = {"/v1/completions": 1, "/execute": 2, "/v2/execute": 3}
    for path, n in routes.items():
        for _ in range(n):
            assert ask(s, "POST", path, body).status == 200
    assert ask(s, "GET", "/nowhere").status == 404
    m = s.metrics()
    for path, n in {**routes, "/v1/chat/completions": 0}.items():
        assert m[f'tern_http_requests_total{{route="{path}",status="2xx"}}'] == n, path
    assert m['tern_http_requests_total{route="other",status="4xx"}'] == 1


def test_there_are_no_constants():
    s = serve()
    names = {k.split("{")[0] for k in s.metrics()}
    for name in ("model_switch_latency_ms", "restarts_total", "preflight_cache_hit_rate", "worker_connection_reuse_rate",
                 "server_rejections_total"):
        assert "tern_" + name not in names, name


run(globals())
