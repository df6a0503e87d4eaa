/* Placement, the index of prefixes, the state of workers, and kept connections of the gateway. */
#include "base/buf.h"
#include "base/mem.h"
#include "cluster/affinity.h"
#include "cluster/fleet.h"
#include "cluster/hop.h"
#include "cluster/place.h"
#include "cluster/promptkey.h"
#include "cluster/stored.h"
#include "cluster/units.h"
#include "net/http.h"
#include "net/loop.h"
#include "support.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- placement ---- */

static struct place_worker worker_of(double outstanding, double assigned)
{
    return (struct place_worker){ .usable = true,
                                  .loaded = true,
                                  .weight = 1,
                                  .outstanding = outstanding,
                                  .assigned = assigned };
}

static int choose(enum place_policy p, struct place_worker *w, int n, double *turn)
{
    struct place_state st = { turn };

    return place_choose(&(struct place_job){ p, 100, 4, 16 }, w, n, &st, NULL);
}

static void the_least_loaded_worker_gets_the_request(void **state)
{
    struct place_worker w[3] = { worker_of(500, 0), worker_of(100, 0), worker_of(300, 0) };
    double turn[3] = { 0 };

    (void)state;
    assert_int_equal(choose(PLACE_LEAST, w, 3, turn), 1);
    w[1].usable = false;
    assert_int_equal(choose(PLACE_LEAST, w, 3, turn), 2);
    w[2].weight = 0; /* no requests */
    assert_int_equal(choose(PLACE_LEAST, w, 3, turn), 0);
    w[0].usable = false;
    assert_int_equal(choose(PLACE_LEAST, w, 3, turn), -1);
}

static void a_worker_of_twice_the_weight_is_half_as_loaded(void **state)
{
    struct place_worker w[2] = { worker_of(300, 0), worker_of(500, 0) };
    double turn[2] = { 0 };

    (void)state;
    w[1].weight = 2;
    assert_int_equal(choose(PLACE_LEAST, w, 2, turn), 1);
}

static void turns_follow_the_weights(void **state)
{
    struct place_worker w[3] = { worker_of(0, 0), worker_of(0, 0), worker_of(0, 0) };
    double turn[3] = { 0 };
    int n[3] = { 0 };

    (void)state;
    w[0].weight = 3, w[1].weight = 2, w[2].weight = 1;
    for (int i = 0; i < 60; i++) n[choose(PLACE_WEIGHTED, w, 3, turn)]++;
    assert_int_equal(n[0], 30);
    assert_int_equal(n[1], 20);
    assert_int_equal(n[2], 10);
    memset(n, 0, sizeof n);
    memset(turn, 0, sizeof turn);
    for (int i = 0; i < 60; i++) n[choose(PLACE_ROUND_ROBIN, w, 3, turn)]++;
    assert_int_equal(n[0], 20);
    assert_int_equal(n[1], 20);
    assert_int_equal(n[2], 20);
}

static void the_longest_prefix_wins_while_the_load_is_balanced(void **state)
{
    struct place_worker w[3] = { worker_of(0, 10000), worker_of(0, 10000), worker_of(0, 10000) };
    double turn[3] = { 0 };

    (void)state;
    w[1].match = 2, w[2].match = 3;
    assert_int_equal(choose(PLACE_PREFIX, w, 3, turn), 2);
    w[2].assigned = 13000; /* more than 5 % above the mean, and two requests */
    assert_int_equal(choose(PLACE_PREFIX, w, 3, turn), 1);
    w[1].outstanding = 5000; /* and the other has a long queue */
    assert_int_equal(choose(PLACE_PREFIX, w, 3, turn), 0);
}

static void loaded_models_come_first_until_they_have_a_queue(void **state)
{
    struct place_worker w[2] = { worker_of(1000, 0), worker_of(0, 0) };
    double turn[2] = { 0 };

    (void)state;
    w[1].loaded = false;
    assert_int_equal(choose(PLACE_LEAST, w, 2, turn), 0);
    w[0].waiting = 20; /* a further replica is worth its load */
    assert_int_equal(choose(PLACE_LEAST, w, 2, turn), 1);
    w[0].usable = false;
    w[0].waiting = 0;
    assert_int_equal(choose(PLACE_LEAST, w, 2, turn), 1);
}

/* A model in use is unloaded for another one only where nothing else is possible. */
static void a_worker_with_room_loads_before_one_that_unloads_a_model(void **state)
{
    struct place_worker w[3] = { worker_of(0, 0), worker_of(500, 0), worker_of(900, 0) };
    double turn[3] = { 0 };

    (void)state;
    for (int i = 0; i < 3; i++) w[i].loaded = false;
    w[0].evicts = EVICTS_USED;
    w[1].evicts = EVICTS_IDLE;
    for (int p = PLACE_PREFIX; p <= PLACE_ROUND_ROBIN; p++) {
        w[2].evicts = EVICTS_NONE;
        assert_int_equal(choose((enum place_policy)p, w, 3, turn), 2);
        w[2].evicts = EVICTS_USED;
        assert_int_equal(choose((enum place_policy)p, w, 3, turn), 1);
    }
    w[1].usable = false;
    assert_int_equal(choose(PLACE_LEAST, w, 3, turn), 0); /* nowhere else */
    w[2].loaded = true;
    w[2].waiting = 50; /* a queue is better than the end of a model in use */
    assert_int_equal(choose(PLACE_LEAST, w, 3, turn), 2);
}

static void replicas_follow_the_demand(void **state)
{
    struct replica_opt o = { 0, 0 };
    struct replica_worker w[3] = { { .usable = true, .loaded = true, .requests = 9 },
                                   { .usable = true, .free_bytes = 10 },
                                   { .usable = true, .free_bytes = 20 } };
    struct replica_choice c = replicas_choose(&o, 9, false, w, 3);

    (void)state;
    assert_true(c.wanted == 2 && c.step == REPLICA_LOAD && c.worker == 2); /* the most room */
    w[2].evicts = EVICTS_IDLE;
    assert_int_equal(replicas_choose(&o, 9, false, w, 3).worker, 1);
    w[1].evicts = w[2].evicts = EVICTS_USED;
    assert_int_equal(replicas_choose(&o, 100, false, w, 3).step, REPLICA_KEEP);
    w[1].evicts = EVICTS_NONE;
    w[2].loading = true; /* that one is enough */
    assert_int_equal(replicas_choose(&o, 9, false, w, 3).step, REPLICA_KEEP);
    o.max = 1;
    assert_int_equal(replicas_choose(&o, 100, false, w, 3).wanted, 1);
    o.max = 0;
    assert_int_equal(replicas_choose(&o, 100, false, w, 3).wanted, 3); /* all there are */

    w[1].loaded = w[2].loaded = true;
    w[2].loading = false;
    c = replicas_choose(&o, 8, false, w, 3);
    assert_true(c.surplus && c.step == REPLICA_KEEP); /* not yet */
    c = replicas_choose(&o, 8, true, w, 3);
    assert_true(c.step == REPLICA_UNLOAD && c.worker == 1); /* idle, with the least room */
    w[1].requests = w[2].requests = 1;
    assert_int_equal(replicas_choose(&o, 8, true, w, 3).step, REPLICA_KEEP); /* all are in use */
    o.min = 3;
    w[1].requests = w[2].requests = 0;
    assert_int_equal(replicas_choose(&o, 0, true, w, 3).step, REPLICA_KEEP);
}

/* A minimum is loaded in advance where there is room; the last replica is the worker's own. */
static void a_minimum_of_replicas_evicts_nothing(void **state)
{
    struct replica_opt o = { 0, 0 };
    struct replica_worker w[2] = { { .usable = true, .evicts = EVICTS_IDLE }, { .usable = true } };

    (void)state;
    assert_int_equal(replicas_choose(&o, 3, false, w, 2).step, REPLICA_KEEP); /* by the request */
    o.min = 1;
    assert_int_equal(replicas_choose(&o, 0, false, w, 2).worker, 1);
    w[1].evicts = EVICTS_IDLE;
    assert_int_equal(replicas_choose(&o, 0, false, w, 2).step, REPLICA_KEEP);
    o.min = 0;
    w[0].loaded = true;
    assert_false(replicas_choose(&o, 0, true, w, 2).surplus);
    assert_int_equal(replicas_choose(&o, 0, true, w, 0).wanted, 0);
}

static void affinity_keeps_the_imbalance_below_five_percent(void **state)
{
    struct place_worker w[4] = { worker_of(0, 0), worker_of(0, 0), worker_of(0, 0),
                                 worker_of(0, 0) };
    struct affinity *a = NULL;
    struct err e = { 0 };
    int match[4], hits = 0;

    (void)state;
    assert_int_equal(affinity_open(&a, 4096, &e), OK);
    srand(1);
    for (int i = 0; i < 4000; i++) {
        uint64_t hashes[8];
        int32_t ids[128], group = rand() % 12, at;
        struct place_state st = { NULL };

        for (int k = 0; k < 128; k++) ids[k] = k < 96 ? group * 1000 + k : rand();
        assert_int_equal(affinity_hash_ids(0, ids, 128, hashes), 8);
        affinity_match(a, hashes, 8, match, 4);
        for (int k = 0; k < 4; k++) w[k].match = match[k];
        at = place_choose(&(struct place_job){ PLACE_PREFIX, 160, 8, 16 }, w, 4, &st, NULL);
        assert_true(at >= 0);
        hits += w[at].match >= 6;
        w[at].assigned += 160;
        affinity_add(a, hashes, 8, at);
    }
    assert_true(place_imbalance(w, 4) < 0.05);
    assert_true(hits > 3800); /* 95 % */
    affinity_close(a);
}

/* ---- the index of prefixes ---- */

static void the_index_knows_how_much_of_a_prompt_a_worker_has(void **state)
{
    struct affinity *a = NULL;
    struct err e = { 0 };
    int32_t one[64], two[64];
    uint64_t h1[4], h2[4];
    int match[3];

    (void)state;
    for (int i = 0; i < 64; i++) one[i] = i, two[i] = i < 32 ? i : -i;
    assert_int_equal(affinity_hash_ids(5, one, 64, h1), 4);
    assert_int_equal(affinity_hash_ids(5, two, 63, h2), 3); /* full blocks only */
    assert_true(h1[1] == h2[1] && h1[2] != h2[2]);
    assert_int_equal(affinity_open(&a, 64, &e), OK);
    affinity_add(a, h1, 4, 2);
    affinity_match(a, h2, 3, match, 3);
    assert_int_equal(match[0], 0);
    assert_int_equal(match[2], 2);
    affinity_add(a, h2, 3, 0);
    affinity_match(a, h1, 4, match, 3);
    assert_int_equal(match[0], 2);
    assert_int_equal(match[2], 4);
    affinity_forget(a, 2);
    affinity_match(a, h1, 4, match, 3);
    assert_int_equal(match[2], 0);
    affinity_close(a);
}

static void make_key(const struct promptkeys *k, struct str body, struct promptkey *out)
{
    struct promptlook l;

    promptlook_begin(&l, body);
    while (!promptlook_step(&l)) continue;
    promptkey_make(k, &l, 0, out);
}

static void texts_with_one_beginning_have_equal_hashes(void **state)
{
    struct promptkey a, b;

    (void)state;
    make_key(NULL,
             STR("{\"model\":\"m\",\"max_tokens\":7,\"messages\":[{\"role\":\"user\",\"content\":"
                 "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
                 "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa1\"}]}"),
             &a);
    make_key(NULL,
             STR("{\"n\":3,\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":"
                 "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
                 "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa2\"}]}"),
             &b);
    assert_string_equal(a.model, "m");
    assert_int_equal(b.n, 3);
    assert_int_equal(a.n_hashes, 2);
    assert_true(a.hashes[0] == b.hashes[0] && a.hashes[1] == b.hashes[1]);
    assert_true(!a.exact && a.cost > 7);
    make_key(NULL,
             STR("{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":"
                 "\"baaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}]}"),
             &b);
    assert_true(b.n_hashes >= 1 && a.hashes[0] != b.hashes[0]);
    make_key(NULL, STR("{\"n\":1e12,\"max_tokens\":1e300,\"prompt\":\"a\"}"), &a);
    assert_true(a.n == 1000000000 && a.cost > 1e17 && a.cost < 1e19);
    make_key(NULL, STR("{\"n\":-5,\"prompt\":\"a\"}"), &a);
    assert_int_equal(a.n, 1);
    make_key(NULL, STR("not JSON"), &a);
    assert_int_equal(a.n_hashes, 0);
    make_key(NULL, STR(""), &a);
    assert_int_equal(a.n_hashes, 0);
}

static void with_the_tokenizer_hashes_are_those_of_token_blocks(void **state)
{
    const char *models[] = { "models/tern-tales.gguf" }, *names[] = { NULL };
    struct promptkeys *k = NULL;
    struct promptkey a, b;
    struct err e = { 0 };

    (void)state;
    if (promptkeys_open(&k, models, names, 1, &e) != OK) skip();
    make_key(k,
             STR("{\"prompt\":\"Once upon a time there was a little frog who wanted to see the "
                 "whole wide world\",\"max_tokens\":4}"),
             &a);
    make_key(k,
             STR("{\"max_tokens\":4, \"prompt\" : \"Once upon a time there was a little frog who "
                 "wanted to see the whole wide ocean\"}"),
             &b);
    assert_true(a.exact && b.exact && a.n_hashes >= 1);
    assert_true(a.hashes[0] == b.hashes[0]);
    promptkeys_close(k);
}

/* What comes behind a long prompt is found, and no step looks at much of it. */
static void a_long_body_is_looked_at_in_pieces(void **state)
{
    enum { BYTES = 16 << 20, PIECES = 60 };
    struct buf b = { 0 };
    struct promptlook l;
    struct promptkey key;
    int n = 1;

    (void)state;
    buf_puts(&b, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
    while (b.n < BYTES) buf_puts(&b, "a \\\"word\\\" {[ ");
    buf_puts(&b, "\"}],\"model\":\"m\",\"n\":3,\"max_tokens\":5}");
    assert_false(b.failed);
    promptlook_begin(&l, buf_str(&b));
    while (!promptlook_step(&l)) n++;
    assert_true(n >= PIECES);
    promptkey_make(NULL, &l, 0, &key);
    assert_string_equal(key.model, "m");
    assert_int_equal(key.n, 3);
    buf_release(&b);
}

/* One pass finds what the gateway needs for every kind of request: of each byte once, of a bounded number
 * of bytes in one step. */
static void one_pass_finds_all_members(void **state)
{
    enum { BYTES = 4 << 20 };
    struct buf b = { 0 };
    struct promptlook l;
    size_t before = 0;
    bool last;

    (void)state;
    buf_puts(&b, "{\"input\":\"");
    while (b.n < BYTES) buf_puts(&b, "\\\"durable\\\":true ");
    buf_puts(&b, "\",\"durable\":true,\"stream\":true,\"previous_response_id\":\"resp_1\"}");
    assert_false(b.failed);
    promptlook_begin(&l, buf_str(&b));
    do {
        last = promptlook_step(&l);
        assert_true(l.scan.at > before && l.scan.at - before <= PROMPTLOOK_BYTES);
        before = l.scan.at;
    } while (!last);
    assert_int_equal(before, b.n);
    assert_true(str_is(promptlook_durable(&l), "true") && promptlook_streams(&l));
    assert_true(promptlook_durable(&l).p > b.p + BYTES);
    assert_true(str_is(promptlook_previous(&l), "resp_1"));
    assert_true(stored_key(STR("/v1/responses"), promptlook_previous(&l)) ==
                stored_key(STR("/responses/resp_1/cancel"), STR("")));
    assert_int_equal(stored_key(STR("/v1/completions"), promptlook_previous(&l)), 0);
    buf_release(&b);
    promptlook_begin(&l, STR("{\"durable\":\"true\",\"stream\":1,\"previous_response_id\":7}"));
    while (!promptlook_step(&l)) continue;
    assert_true(!promptlook_durable(&l).p && !promptlook_streams(&l) && !promptlook_previous(&l).p);
}

/* ---- the state of a worker ---- */

static void the_state_of_a_worker_is_checked_member_by_member(void **state)
{
    static const struct {
        const char *json, *want;
    } bad[] = {
        { "", "JSON object" },
        { "[1]", "JSON object" },
        { "{\"v\":2,\"instance\":\"a\",\"models\":[]}", "'v' is not 1" },
        { "{\"v\":1,\"models\":[]}", "'instance'" },
        { "{\"v\":1,\"instance\":\"\",\"models\":[]}", "'instance'" },
        { "{\"v\":1,\"instance\":\"a\"}", "'models'" },
        { "{\"v\":1,\"instance\":\"a\",\"models\":[{}]}", "id" },
        { "{\"v\":1,\"instance\":\"a\",\"models\":[{\"model\":{\"id\":\"m\",\"aliases\":[5]}}]}",
          "alias" },
    };
    struct worker w = { .index = 0 };
    struct err e = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int rc = fleet_read_state(&w, str_c(bad[i].json), &e);
        if (rc != E_FORMAT || !strstr(e.msg, bad[i].want)) fail_msg("%s: %s", bad[i].json, e.msg);
        assert_int_equal(w.n_models, 0);
    }
    assert_int_equal(
        fleet_read_state(
            &w,
            STR("{\"v\":1,\"instance\":\"a-1\",\"draining\":true,\"gangs\":[7,{\"model\":\"m\","
                "\"members\":2,\"tp\":2,\"pp\":-1,\"comm_share\":0.25,\"hosts\":[\"a\",5]}],"
                "\"models\":["
                "{\"model\":{\"id\":\"m\",\"aliases\":[\"x\"],\"status\":{\"value\":\"loaded\"}},"
                "\"running\":3,\"waiting\":2,\"kv_free\":0.5},"
                "{\"model\":{\"id\":\"n\",\"status\":{\"value\":\"unloaded\"}}}]}"),
            &e),
        OK);
    assert_int_equal(w.n_models, 2);
    assert_true(w.says_draining && w.running == 3 && w.waiting == 2);
    assert_string_equal(w.gang, "m: 2 members (tp 2, pp 0) on a, ?, 25 % communication");
    assert_true(worker_model(&w, STR("x")) == &w.models[0] && w.models[0].loaded);
    assert_true(worker_model(&w, STR("n")) == &w.models[1] && !w.models[1].loaded);
    assert_null(worker_model(&w, STR("other")));
    for (int i = 0; i < w.n_models; i++) {
        for (int k = 0; k < w.models[i].n_aliases; k++) mem_free(w.models[i].aliases[k]);
        mem_free(w.models[i].aliases);
        mem_free(w.models[i].id);
    }
    mem_free(w.models);
    buf_release(&w.list);
}

/* ---- the breaker ---- */

/* A request that is placed and ends so; false: the worker gets none now. */
static bool try_worker(struct fleet *f, enum worker_result r)
{
    struct fleet_job job = { .cost = 1, .any_model = true };
    bool by_prefix, known;
    struct worker *w = fleet_place(f, &job, &by_prefix, &known);

    if (w) worker_done(w, 1, r);
    return w != NULL;
}

static void the_breaker_of_a_worker_opens_and_is_tried_by_one_request(void **state)
{
    struct loop *loop = NULL;
    struct fleet *f = NULL;
    struct fleet_job job = { .cost = 1, .any_model = true };
    struct worker *w;
    struct err e = { 0 };
    bool by_prefix, known;

    (void)state;
    assert_int_equal(loop_open(&loop, &e), OK);
    assert_int_equal(
        fleet_open(
            &f,
            &(struct fleet_opt){
                .loop = loop, .cluster_key = "", .ca_file = "", .beat_ms = 25, .detect_ms = 90 },
            &e),
        OK);
    assert_non_null(w = fleet_add(f, STR("http://127.0.0.1:9"), 1, &e));
    w->state = WORKER_READY; /* the loop does not run: nobody asks the worker */
    for (int i = 1; i < BREAKER_FAILS; i++) assert_true(try_worker(f, WORKER_BROKEN));
    assert_true(try_worker(f, WORKER_OK)); /* counts from the beginning */
    for (int i = 0; i < BREAKER_FAILS; i++) assert_true(try_worker(f, WORKER_BROKEN));
    assert_false(try_worker(f, WORKER_OK)); /* open */
    assert_int_equal(w->n.opened, 1);

    w->open_until = 1; /* its time has passed: one request is let through */
    assert_ptr_equal(fleet_place(f, &job, &by_prefix, &known), w);
    assert_false(try_worker(f, WORKER_OK));
    worker_done(w, 1, WORKER_CANCELLED); /* decides nothing: the next one does */
    assert_true(try_worker(f, WORKER_BROKEN));
    assert_int_equal(w->n.opened, 2);
    assert_false(try_worker(f, WORKER_OK)); /* open again, for longer */

    w->open_until = 1;
    assert_true(try_worker(f, WORKER_OK));
    assert_true(w->open_until == 0 && w->n_opened == 0); /* closed */
    assert_ptr_equal(fleet_place(f, &job, &by_prefix, &known), w);
    assert_true(try_worker(f, WORKER_OK)); /* several at once again */
    worker_done(w, 1, WORKER_OK);
    fleet_close(f);
    loop_close(loop);
}

/* ---- kept connections ---- */

struct world {
    struct loop *loop;
    struct http *http;
    struct lane *lane;
    struct buf got;
    int status, left, drop;
    bool fresh;
    enum hop_end end;
    bool ended;
};

static void serve(void *arg, struct http_req *q)
{
    struct world *w = arg;

    if (w->drop) {
        w->drop--;
        if (!http_begin(q, 200, "text/plain")) fail();
        http_write(q, "half", 4);
        http_drop(q, "closed");
        http_end(q);
        return;
    }
    http_reply(q, 200, "text/plain", http_body(q).p, http_body(q).n);
}

static void bad_request(void *arg, struct http_req *q, int status, const char *code,
                        const char *msg, struct buf *out)
{
    (void)arg, (void)q, (void)status, (void)code, (void)msg;
    buf_puts(out, "{}");
}

static void hop_head(void *arg, int status, bool sse)
{
    ((struct world *)arg)->status = status;
    assert_false(sse);
}
static void hop_data(void *arg, struct str bytes)
{
    buf_put_str(&((struct world *)arg)->got, bytes);
}

static const struct hop_ops ops;
static void hop_ended(void *arg, enum hop_end end)
{
    struct world *w = arg;

    w->end = end;
    w->ended = true;
    loop_stop(w->loop);
}
static const struct hop_ops ops = { NULL, hop_head, hop_data, hop_ended };

static void ask(struct world *w, const char *body)
{
    struct hop_request rq = {
        .method = "POST", .path = "/x", .body = str_c(body), .has_body = true, .fresh = w->fresh
    };

    buf_clear(&w->got);
    w->ended = false;
    assert_non_null(hop_start(w->lane, &rq, &ops, w));
    loop_run(w->loop);
    assert_true(w->ended);
}

static void a_connection_is_kept_and_used_again(void **state)
{
    struct world w = { 0 };
    struct http_opt o = { .host = "127.0.0.1", .handler = serve, .fail = bad_request, .arg = &w };
    struct lane_stats n;
    struct err e = { 0 };
    uint64_t opened;
    char url[64];

    (void)state;
    assert_int_equal(loop_open(&w.loop, &e), OK);
    assert_int_equal(http_open(&w.http, w.loop, &o, &e), OK);
    snprintf(url, sizeof url, "http://127.0.0.1:%d", http_port(w.http));
    assert_int_equal(lane_open(&w.lane, loop_base(w.loop), url, NULL, &e), OK);
    for (int i = 0; i < 5; i++) {
        ask(&w, "hello");
        assert_int_equal(w.end, HOP_DONE);
        assert_string_equal(buf_cstr(&w.got), "hello");
    }
    lane_stats(w.lane, &n);
    assert_int_equal(n.opened, 1);
    assert_int_equal(n.reused, 4);
    assert_int_equal(n.idle, 1);
    w.drop = 1; /* in the middle of a reply */
    ask(&w, "x");
    assert_int_equal(w.end, HOP_CUT);
    ask(&w, "y");
    assert_int_equal(w.end, HOP_DONE);
    lane_stats(w.lane, &n);
    opened = n.opened;
    w.fresh =
        true; /* it must not be sent twice: never on a connection that may be closed already */
    ask(&w, "z");
    assert_int_equal(w.end, HOP_DONE);
    lane_stats(w.lane, &n);
    assert_int_equal(n.opened, opened + 1);
    w.fresh = false;
    lane_drop_idle(w.lane);
    ask(&w, "z");
    assert_int_equal(w.end, HOP_DONE);
    http_close(
        w.http); /* the worker is gone: its kept connection is closed, and a new one refused */
    w.http = NULL;
    ask(&w, "z");
    assert_int_equal(w.end, HOP_CONNECT);
    lane_stats(w.lane, &n);
    assert_int_equal(n.idle + n.busy, 0);
    lane_close(w.lane);
    loop_close(w.loop);
    buf_release(&w.got);
}

static void urls_that_are_wrong_are_refused(void **state)
{
    static const char *const bad[] = { "", "nonsense", "ftp://x", "http://", "unix:" };
    struct loop *loop = NULL;
    struct lane *lane = NULL;
    struct err e = { 0 };

    (void)state;
    assert_int_equal(loop_open(&loop, &e), OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(lane_open(&lane, loop_base(loop), bad[i], NULL, &e), E_INVALID);
    loop_close(loop);
}

static void add_unit(void *arg, struct str bytes, bool ping)
{
    if (ping) buf_puts(arg, "(ping)");
    buf_put_str(arg, bytes);
    buf_putc(arg, '|');
}

/* However the bytes are cut: the same units, ids and numbers. */
static void units_of_a_stream_are_passed_whole(void **state)
{
    const char text[] = "event: ping\n\n: ids -\n\ndata: a\n\n: ids 1 22 @2\n\n{}\n: ids 3\n\n"
                        "data: b\n\n: ids 99999999999 4\n\ndata: c\n\n: ids 5 @x\n\nrest: ids 7";

    (void)state;
    for (size_t cut = 0; cut + 1 <= sizeof text - 1; cut++) {
        struct units u = { 0 };
        struct buf got = { 0 };

        units_push(&u, str_of(text, cut), add_unit, &got);
        units_push(&u, str_of(text + cut, sizeof text - 1 - cut), add_unit, &got);
        assert_string_equal(buf_cstr(&got),
                            "(ping)event: ping\n\n|data: a\n\n|{}\n|data: b\n\n|data: c\n\n|");
        assert_int_equal(u.ids.n, 4); /* the number that is too large ends its list */
        assert_int_equal(u.ids.p[1], 22);
        assert_int_equal(u.ids.p[3], 5);
        assert_int_equal(u.n_events, 2);
        assert_true(u.begun);
        assert_int_equal(u.rest.n, strlen("rest: ids 7"));
        units_release(&u);
        buf_release(&got);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_least_loaded_worker_gets_the_request),
        cmocka_unit_test(a_worker_of_twice_the_weight_is_half_as_loaded),
        cmocka_unit_test(turns_follow_the_weights),
        cmocka_unit_test(the_longest_prefix_wins_while_the_load_is_balanced),
        cmocka_unit_test(loaded_models_come_first_until_they_have_a_queue),
        cmocka_unit_test(affinity_keeps_the_imbalance_below_five_percent),
        cmocka_unit_test(the_index_knows_how_much_of_a_prompt_a_worker_has),
        cmocka_unit_test(texts_with_one_beginning_have_equal_hashes),
        cmocka_unit_test(with_the_tokenizer_hashes_are_those_of_token_blocks),
        cmocka_unit_test(a_worker_with_room_loads_before_one_that_unloads_a_model),
        cmocka_unit_test(replicas_follow_the_demand),
        cmocka_unit_test(a_minimum_of_replicas_evicts_nothing),
        cmocka_unit_test(a_long_body_is_looked_at_in_pieces),
        cmocka_unit_test(one_pass_finds_all_members),
        cmocka_unit_test(the_state_of_a_worker_is_checked_member_by_member),
        cmocka_unit_test(the_breaker_of_a_worker_opens_and_is_tried_by_one_request),
        cmocka_unit_test(units_of_a_stream_are_passed_whole),
        cmocka_unit_test(a_connection_is_kept_and_used_again),
        cmocka_unit_test(urls_that_are_wrong_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
