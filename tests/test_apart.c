/* Routed experts on another device than their layers: logits and greedy tokens of every mixture, batches
 * of several sequences, copies that must be waited for, failures, memory by the load plan; and the
 * options that say which experts.
 *
 * Reads tests/golden/hf and hf-2026, ../shared/fixtures/hf and hf-2026. All backends are CPU
 * backends. */
#include "model_world.h"

#include "model/expertplace.h"
#include "model/loadplan.h"

#include <dirent.h>

static struct backend *open_cpu(bool reference)
{
    struct backend *be = NULL;
    struct err e = { 0 };

    if (backend_open(&be, &(struct backend_opt){ .n_threads = 2, .reference = reference }, &e) !=
        OK)
        fail_msg("%s", e.msg);
    return be;
}

static void close_cpu(struct backend *be)
{
    for (int i = 0; i < MEM_KINDS; i++) assert_int_equal(be->used_bytes[i], 0);
    backend_close(be);
}

/* Layers on be, which the world closes, and the experts of n_apart layers on `experts`. */
static struct world open_apart(const char *path, struct backend *be, struct backend *experts,
                               int n_apart)
{
    struct world w = { .be = be };
    struct err e = { 0 };
    struct decoder_opt opt = world_opt(DT_F32);
    struct model_input in = { 0 };
    struct backend_share all = { .be = be };
    struct hparams hp;
    bool *apart;

    if (source_open(&w.src, path, &e) != OK || hparams_read(&hp, &w.arena, w.src, &e) != OK)
        fail_msg("%s", e.msg);
    apart = arena_array(&w.arena, (size_t)hp.n_layers, sizeof *apart);
    for (int l = 0; l < hp.n_layers; l++) apart[l] = l < n_apart;
    all.n_layers = hp.n_layers;
    in = (struct model_input){
        .source = w.src, .shares = &all, .n_shares = 1, .experts = { experts, apart }
    };
    if (open_model_input(&w.m, &w.arena, in, &e) != OK ||
        block_pool_open(&w.pool, opt.n_blocks, &e) != OK ||
        decoder_open(&w.dec, w.m, &opt, &e) != OK)
        fail_msg("%s: %s", path, e.msg);
    return w;
}

enum { ALL = 1 << 20 };

static bool is_mixture(const char *path)
{
    struct source *src = NULL;
    struct arena a = { 0 };
    struct hparams hp;
    bool is = source_open(&src, path, NULL) == OK && hparams_read(&hp, &a, src, NULL) == OK &&
              hp.moe.n > 0 && !hp.encoder;

    arena_release(&a);
    source_close(src);
    return is;
}

/* Calls fn for every mixture below the folder, which may be missing; returns their number. */
static int each_mixture(const char *folder, void (*fn)(const char *path))
{
    DIR *d = folder ? opendir(folder) : NULL;
    int n = 0;

    for (struct dirent *f; d && (f = readdir(d));) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s", folder, f->d_name);
        if (strchr(f->d_name, '.') || !is_mixture(path)) continue;
        if (n++ % THIN == 0) fn(path);
    }
    if (d) closedir(d);
    return n;
}

static void each_known_mixture(void (*fn)(const char *path))
{
    int n = each_mixture(repo("tests/golden/hf"), fn);

    n += each_mixture(repo("tests/golden/hf-2026"), fn);
    assert_true(n >= 4);
    each_mixture(shared("fixtures/hf"), fn);
    each_mixture(shared("fixtures/hf-2026"), fn);
}

/* ---- results ---- */

static void check_apart(const char *path, bool reference, double bound)
{
    struct backend *experts = open_cpu(reference);
    struct world w = open_apart(path, open_cpu(true), experts, ALL);
    struct source *g = NULL;
    struct chain c;
    int32_t ids[48], greedy[16], next;
    int n_vocab = w.m->hp.n_vocab, match = 0;
    char *golden_path = path_join(path, "golden.safetensors");
    const struct source_tensor *ref;
    const float *logits;
    double worst = 0;

    assert_true(experts->used_bytes[MEM_SCRATCH] > 0);
    assert_int_equal(source_open(&g, golden_path, NULL), OK);
    read_ids(g, "input_ids", ids, 48);
    read_ids(g, "greedy", greedy, 16);
    ref = source_find(g, "logits");
    assert_true(chain_init(&c, 64));
    assert_true(chain_reserve(&c, w.pool, 64));
    logits = run_tokens(&w, &c, ids, 0, 48);
    for (int t = 0; t < 48; t++) {
        float *row = mem_array((size_t)n_vocab, sizeof *row);
        memcpy(row, (const char *)ref->data + (size_t)t * (size_t)n_vocab * 4, (size_t)n_vocab * 4);
        double e = relative_error(logits + (size_t)t * (size_t)n_vocab, row, n_vocab);
        if (!(e <= worst)) worst = e;
        mem_free(row);
    }
    if (!(worst <= bound)) fail_msg("%s: relative error %g, at most %g", path, worst, bound);
    next = find_largest(logits + 47 * (size_t)n_vocab, n_vocab);
    while (match < 16 && next == greedy[match]) {
        if (++match == 16) break;
        next = find_largest(run_tokens(&w, &c, &next, 47 + match, 1), n_vocab);
    }
    if (read_margin(g) > 0.02) assert_int_equal(match, 16);
    chain_release(&c, w.pool);
    source_close(g);
    mem_free(golden_path);
    close_world(&w);
    close_cpu(experts);
}

static void check_exact(const char *path) { check_apart(path, true, 1e-4); }
static void check_fast(const char *path) { check_apart(path, false, 3e-3); }

static void experts_apart_give_the_golden_logits(void **state)
{
    (void)state;
    each_known_mixture(check_exact);
}

static void experts_apart_by_the_fastest_kernels_give_the_golden_logits(void **state)
{
    (void)state;
    each_known_mixture(check_fast);
}

/* Three sequences: prompts, then one goes on while another begins, with few outputs wanted. */
struct mixed {
    struct world *w;
    struct chain chain[3];
    int len[3];
};

static void open_mixed(struct mixed *x, struct world *w)
{
    *x = (struct mixed){ .w = w };
    for (int i = 0; i < 3; i++) {
        assert_true(chain_init(&x->chain[i], 64));
        assert_true(chain_reserve(&x->chain[i], w->pool, 64));
    }
}

static void close_mixed(struct mixed *x)
{
    for (int i = 0; i < 3; i++) chain_release(&x->chain[i], x->w->pool);
}

static int run_mixed(struct mixed *x, const int n[3], bool last_only, bool (*stop)(void *),
                     const float **logits, struct err *e)
{
    int32_t ids[MAX_TOKENS], pos[MAX_TOKENS], seq[MAX_TOKENS], rows[MAX_TOKENS],
        table[3 * 8] = { 0 };
    struct batch b = { .ids = ids,
                       .pos = pos,
                       .seq = seq,
                       .n_seqs = 3,
                       .table = table,
                       .table_stride = 8,
                       .out_rows = rows,
                       .stop = stop };

    for (int s = 0; s < 3; s++) {
        memcpy(table + s * 8, x->chain[s].blocks, (size_t)x->chain[s].n * sizeof *table);
        for (int i = 0; i < n[s]; i++, b.n_tokens++) {
            ids[b.n_tokens] = (7 * (x->len[s] + i) + 11 * s + 3) % 60;
            pos[b.n_tokens] = x->len[s] + i;
            seq[b.n_tokens] = s;
            if (!last_only || i == n[s] - 1) rows[b.n_out++] = b.n_tokens;
        }
        x->len[s] += n[s];
    }
    return runner_run(x->w->dec, &b, logits, e);
}

static void check_mixed(const char *path)
{
    static const int steps[][3] = {
        { 9, 0, 0 }, { 1, 20, 0 }, { 1, 1, 17 }, { 1, 1, 1 }, { 0, 1, 1 }
    };

    for (int n_apart = 1; n_apart <= ALL; n_apart = n_apart == 1 ? ALL : ALL + 1) {
        struct backend *experts = open_cpu(true);
        struct world one = open_world(path, true),
                     two = open_apart(path, open_cpu(true), experts, n_apart);
        struct mixed a, b;
        uint64_t allocs = 0;
        open_mixed(&a, &one), open_mixed(&b, &two);
        for (size_t i = 0; i < N(steps); i++) {
            const float *x, *y;
            bool last_only = i % 2;
            int n = last_only ? !!steps[i][0] + !!steps[i][1] + !!steps[i][2]
                              : steps[i][0] + steps[i][1] + steps[i][2];
            assert_int_equal(run_mixed(&a, steps[i], last_only, NULL, &x, NULL), OK);
            assert_int_equal(run_mixed(&b, steps[i], last_only, NULL, &y, NULL), OK);
            if (relative_error(y, x, n * one.m->hp.n_vocab) > 1e-5)
                fail_msg("%s: step %zu differs with %d layers apart", path, i, n_apart);
            if (i == 2) allocs = experts->n_allocs + two.be->n_allocs;
        }
        assert_int_equal(experts->n_allocs + two.be->n_allocs, allocs);
        close_mixed(&a), close_mixed(&b);
        close_world(&one), close_world(&two);
        close_cpu(experts);
    }
}

static void batches_of_several_sequences_give_what_one_device_gives(void **state)
{
    (void)state;
    each_known_mixture(check_mixed);
}

/* ---- a device that works later ---- */

/* Stands for a GPU: what `get` copies arrives when it is waited for. */
enum { MAX_LATER = 64 };
static struct {
    struct {
        void *dst, *data;
        size_t n;
        int part;
    } at[MAX_LATER];
    int n, n_parts, n_flushes;
} later;
static void (*plain_get)(struct backend *be, void *dst, const void *src, size_t n);
static int (*plain_sync)(struct backend *be, struct err *e);

static void get_later(struct backend *be, void *dst, const void *src, size_t n)
{
    (void)be;
    assert_true(later.n < MAX_LATER);
    memset(dst, 0xff, n); /* ids and numbers of nothing */
    later.at[later.n].dst = dst;
    later.at[later.n].n = n;
    later.at[later.n].part = later.n_parts;
    later.at[later.n].data = mem_alloc(n);
    memcpy(later.at[later.n++].data, src, n);
}

static void arrive(int before)
{
    int left = 0;

    for (int i = 0; i < later.n; i++) {
        if (later.at[i].part >= before) {
            later.at[left++] = later.at[i];
            continue;
        }
        memcpy(later.at[i].dst, later.at[i].data, later.at[i].n);
        mem_free(later.at[i].data);
    }
    later.n = left;
}

static void flush_later(struct backend *be, bool whole)
{
    (void)be, (void)whole;
    later.n_parts++, later.n_flushes++;
}

static void throttle_later(struct backend *be, int ahead)
{
    (void)be;
    arrive(later.n_parts - ahead);
}

static int sync_later(struct backend *be, struct err *e)
{
    arrive(++later.n_parts);
    return plain_sync(be, e);
}

static int alloc_pinned(struct backend *be, void **out, size_t n, struct err *e)
{
    (void)be, (void)e;
    *out = mem_aligned(n);
    return OK;
}

static void free_pinned(struct backend *be, void *p, size_t n)
{
    (void)be;
    mem_free_aligned(p, n);
}

static void make_later(struct backend *be)
{
    memset(&later, 0, sizeof later);
    plain_get = be->get, plain_sync = be->sync;
    be->get = get_later, be->sync = sync_later;
    be->flush = flush_later, be->throttle = throttle_later;
    be->host_alloc = alloc_pinned, be->host_free = free_pinned;
    be->whole_tokens = 64;
}

static void check_later(const char *path)
{
    static const int steps[][3] = { { 9, 4, 0 }, { 1, 1, 30 }, { 1, 1, 1 } };
    struct backend *experts = open_cpu(true), *be = open_cpu(true);
    struct world one = open_world(path, true), two;
    struct mixed a, b;

    make_later(be);
    two = open_apart(path, be, experts, ALL);
    open_mixed(&a, &one), open_mixed(&b, &two);
    for (size_t i = 0; i < N(steps); i++) {
        const float *x, *y;
        int n = steps[i][0] + steps[i][1] + steps[i][2];
        later.n_flushes = 0;
        assert_int_equal(run_mixed(&a, steps[i], false, NULL, &x, NULL), OK);
        assert_int_equal(run_mixed(&b, steps[i], false, NULL, &y, NULL), OK);
        if (relative_error(y, x, n * one.m->hp.n_vocab) > 1e-5)
            fail_msg("%s: step %zu did not wait for its copies", path, i);
        assert_true(later.n_flushes > 0);
    }
    close_mixed(&a), close_mixed(&b);
    close_world(&one), close_world(&two);
    close_cpu(experts);
}

static void copies_to_the_experts_are_waited_for(void **state)
{
    (void)state;
    each_known_mixture(check_later);
}

/* ---- failures ---- */

static int n_asked;

static bool stop_after_one(void *arg)
{
    (void)arg;
    return ++n_asked > 1;
}

static void a_step_can_be_stopped_between_layers(void **state)
{
    struct backend *experts = open_cpu(true), *be = open_cpu(true);
    struct world w;
    struct mixed x;
    const float *logits;
    struct err e = { 0 };
    (void)state;
    make_later(be);
    w = open_apart(golden("glm4_moe"), be, experts, ALL);
    open_mixed(&x, &w);
    n_asked = 0;
    assert_int_equal(run_mixed(&x, (int[3]){ 5, 0, 0 }, false, stop_after_one, &logits, &e),
                     E_CANCELLED);
    x.len[0] = 0;
    assert_int_equal(run_mixed(&x, (int[3]){ 5, 0, 0 }, false, NULL, &logits, &e), OK);
    close_mixed(&x);
    close_world(&w);
    close_cpu(experts);
}

static int n_failures;

static int fail_once(struct backend *be, struct err *e)
{
    (void)be;
    return n_failures-- > 0 ? err_set(e, E_NOMEM, "experts: no memory") : OK;
}

static void a_failure_of_the_experts_fails_the_step(void **state)
{
    struct backend *experts = open_cpu(true);
    struct world w = open_apart(golden("glm4_moe"), open_cpu(true), experts, ALL);
    struct mixed x;
    const float *logits;
    struct err e = { 0 };
    (void)state;
    open_mixed(&x, &w);
    experts->sync = fail_once;
    n_failures = 1;
    assert_int_equal(run_mixed(&x, (int[3]){ 5, 0, 0 }, false, NULL, &logits, &e), E_NOMEM);
    assert_string_equal(e.msg, "experts: no memory");
    x.len[0] = 0;
    assert_int_equal(run_mixed(&x, (int[3]){ 5, 0, 0 }, false, NULL, &logits, &e), OK);
    close_mixed(&x);
    close_world(&w);
    close_cpu(experts);
}

/* ---- the load plan ---- */

static void check_plan(const char *path)
{
    static bool all[4096];
    struct place place = { .n_shares = 2 };
    struct load_opt o = { .n_ctx = 64, .max_batch = 32, .max_seqs = 2, .place = &place };
    struct loadplan *p = NULL, *whole = NULL;
    struct runner *r = NULL;
    struct runner_device d[4];
    struct err e = { 0 };
    uint64_t experts = 0;

    memset(all, true, sizeof all);
    if (loadplan_read(&p, path, &e) != OK || loadplan_read(&whole, path, &e) != OK)
        fail_msg("%s", e.msg);
    o.kv_type = DT_F16;
    place.shares[0] = (struct backend_share){ open_cpu(false), 0 };
    place.shares[1] = (struct backend_share){ open_cpu(false), p->hp->n_layers };
    place.experts = (struct expert_place){ place.shares[0].be, all };
    if (loadplan_make(p, &o, &e) != OK) fail_msg("%s", e.msg);
    o.place = NULL;
    o.backend.n_threads = 2;
    if (loadplan_make(whole, &o, &e) != OK) fail_msg("%s", e.msg);
    if (runner_open(&r, p, &e) != OK) fail_msg("%s", e.msg);
    for (int i = 0; i < 2; i++) {
        const size_t *used = p->place.shares[i].be->used_bytes;
        assert_int_equal(used[MEM_WEIGHTS], p->memory[i].weights);
        assert_int_equal(used[MEM_KV], p->memory[i].kv);
        assert_int_equal(used[MEM_SCRATCH], p->memory[i].scratch);
    }
    for (int i = 0; i < p->weights->n; i++)
        if (weight_expert_matrix(&p->weights->items[i]) >= 0)
            experts += p->weights->items[i].t->bytes;
    assert_true(experts > 0);
    assert_int_equal(p->memory[0].kv, 0);
    assert_true(p->memory[1].kv > 0);
    assert_int_equal(p->memory[0].mapped + p->memory[1].mapped, whole->memory[0].mapped);
    assert_int_equal(p->memory[0].weights + p->memory[1].weights, whole->memory[0].weights);
    assert_true(p->memory[1].scratch < whole->memory[0].scratch);
    assert_int_equal(runner_devices(r, d, 4), 2);
    assert_int_equal(d[0].n_layers, 0);
    assert_true(d[0].n_experts > 0 && d[0].n_experts <= p->hp->n_layers);
    assert_int_equal(d[1].n_layers, p->hp->n_layers);
    assert_int_equal(d[1].n_experts, 0);
    runner_close(r);
    loadplan_close(p), loadplan_close(whole);
}

static void the_plan_counts_experts_where_they_lie(void **state)
{
    (void)state;
    each_known_mixture(check_plan);
}

static void devices_are_described_with_their_experts(void **state)
{
    static bool all[64];
    struct place place = { .n_shares = 2 };
    struct load_opt o = { .n_ctx = 64, .kv_type = DT_F16, .place = &place };
    struct loadplan *p = NULL;
    struct buf b = { 0 };
    (void)state;
    memset(all, true, sizeof all);
    assert_int_equal(loadplan_read(&p, golden("glm4_moe"), NULL), OK);
    place.shares[0] = (struct backend_share){ open_cpu(true), 1 };
    place.shares[1] = (struct backend_share){ open_cpu(true), p->hp->n_layers - 1 };
    place.experts = (struct expert_place){ place.shares[0].be, all };
    assert_int_equal(loadplan_make(p, &o, NULL), OK);
    loadplan_describe_devices(p, &b);
    assert_non_null(strstr(buf_cstr(&b), "1 layers and the experts of "));
    buf_release(&b);
    loadplan_close(p);
}

/* ---- the options ---- */

/* The places of a model's experts by the options: "001" - those of the third layer lie apart; or the
 * message. Valid for the next 3 calls. */
static const char *places(const char *path, struct backend_opt o)
{
    static char texts[4][1024];
    static int n_texts;
    char *out = texts[n_texts++ % 4];
    struct source *src = NULL;
    struct arena a = { 0 };
    struct hparams hp;
    struct weight_list list;
    struct err e = { 0 };
    const bool *apart = NULL;

    assert_int_equal(source_open(&src, path, NULL), OK);
    assert_int_equal(hparams_read(&hp, &a, src, NULL), OK);
    assert_int_equal(weights_find(&list, &a, &hp, src, NULL), OK);
    int rc = expert_place_find(&apart, &a, &hp, &list, &o, &e);
    if (rc != OK) {
        assert_int_equal(rc, e.code);
        snprintf(out, sizeof texts[0], "%d %s", rc == E_INVALID, e.msg);
    } else {
        out[apart ? hp.n_layers : 0] = 0;
        for (int l = 0; apart && l < hp.n_layers; l++) out[l] = apart[l] ? '1' : '0';
    }
    arena_release(&a);
    source_close(src);
    return out;
}

#define ON(name, ...) \
    places(golden("glm4_moe"), (struct backend_opt){ .device = name, __VA_ARGS__ })
#define PLACES(...) ON("cuda", __VA_ARGS__)

/* glm4_moe has a dense layer, then experts. */
static void options_choose_the_layers_whose_experts_lie_apart(void **state)
{
    char all[64], first[64];
    size_t n;
    (void)state;
    snprintf(all, sizeof all, "%s", PLACES(.cpu_moe = true));
    n = strlen(all);
    assert_true(n >= 2 && n < 60 && all[0] == '0' && all[n - 1] == '1');
    snprintf(first, sizeof first, "%s", all);
    memset(first + 2, '0', n - 2);
    assert_string_equal(PLACES(.n_cpu_moe = 2), first);
    assert_string_equal(PLACES(.n_cpu_moe = (int)n), all);
    assert_string_equal(PLACES(.place = "ffn_.*_exps=cpu"), all);
    assert_string_equal(PLACES(.place = "\\.ffn_(up|down|gate)_exps\\.=CPU"), all);
    assert_string_equal(PLACES(.place = "blk\\.\\d+\\.ffn_up_exps=cpu"), all); /* all go together */
    assert_string_equal(PLACES(.place = "layers\\.1\\.mlp\\.experts=cpu"), first);
    assert_string_equal(PLACES(.place = "blk\\.1\\..*_exps=cpu,exps=gpu"), first);
    assert_string_equal(PLACES(.place = "blk\\.1\\..*_exps=CUDA0, exps=cpu"),
                        PLACES(.place = "blk\\.1\\..*_exps=cuda:0,exps=cpu"));
    /* place comes before the others; what stays where it is may have any name */
    assert_string_equal(PLACES(.place = "exps=gpu,.*=gpu", .cpu_moe = true), "");
    assert_string_equal(PLACES(.place = NULL), "");
    assert_string_equal(PLACES(.place = ""), "");
    /* on the CPU everything is there already */
    assert_string_equal(ON("cpu", .cpu_moe = true), "");
    assert_string_equal(ON(NULL, .place = "exps=cpu"), "");
}

static void refused(const char *said, const char *text)
{
    if (said[0] != '1' || said[1] != ' ' || !strstr(said, text))
        fail_msg("'%s' does not refuse with '%s'", said, text);
}

static void options_that_a_model_does_not_fit_are_refused_by_name(void **state)
{
    struct backend_opt moe = { .device = "cuda", .cpu_moe = true },
                       some = { .device = "cuda", .n_cpu_moe = 1 },
                       by = { .device = "cuda", .place = "exps=cpu" };
    (void)state;
    refused(places(golden("qwen2"), moe), "cpu-moe: this qwen2 model has no experts");
    refused(places(golden("qwen2"), some), "n-cpu-moe: this qwen2 model has no experts");
    refused(places(golden("qwen2"), by), "place: this qwen2 model has no experts");
    moe.device = NULL;
    refused(places(golden("qwen2"), moe), "has no experts"); /* on the CPU, too */
    refused(PLACES(.n_cpu_moe = 99), "n-cpu-moe is 99, but the model has");
    refused(PLACES(.n_cpu_moe = 1), "the first layer with experts is number 2");
    refused(PLACES(.n_cpu_moe = -1), "n-cpu-moe is -1");
    refused(PLACES(.place = "fnn_exps=cpu"), "the pattern 'fnn_exps' matches no tensor");
    refused(PLACES(.place = "exps=cpu,zzz=cpu"), "the pattern 'zzz' matches no tensor");
    refused(PLACES(.place = "q_proj=cpu"), "q_proj");
    refused(PLACES(.place = "q_proj=cpu"), "only routed experts can be placed");
    refused(PLACES(.place = "up_exps=cpu,exps=gpu"), "would lie on two devices");
    refused(PLACES(.place = "exps"), "'exps' is not PATTERN=DEVICE");
    refused(PLACES(.place = "=cpu"), "is not PATTERN=DEVICE");
    refused(PLACES(.place = "exps="), "is not PATTERN=DEVICE");
    refused(PLACES(.place = "exps=cuda:1"), "must be cpu or the one that computes, cuda");
    refused(PLACES(.place = "exps=metal"), "'exps=metal'");
    refused(PLACES(.place = "exps=a-name-longer-than-any-device"), "must be cpu");
    refused(PLACES(.place = "(exps=cpu"), "the pattern '(exps' is wrong at character");
    refused(ON("cpu", .place = "exps=gpu"), "must be cpu or the one that computes, cpu");
    refused(PLACES(.cpu_moe = true, .vram_only = true), "cpu-moe");
    refused(PLACES(.n_cpu_moe = 2, .vram_only = true), "n-cpu-moe");
    refused(PLACES(.place = "exps=cpu", .vram_only = true), "place");
}

static void too_many_patterns_are_refused(void **state)
{
    struct buf b = { 0 };
    (void)state;
    for (int i = 0; i < 65; i++) buf_puts(&b, i ? ",exps=cpu" : "exps=cpu");
    refused(PLACES(.place = buf_cstr(&b)), "more than 64 patterns");
    buf_release(&b);
}

/* Several models share the options: those without experts are loaded as they are. */
static void loose_options_are_for_the_models_they_fit(void **state)
{
    struct backend_opt o = { .device = "cuda", .cpu_moe = true, .place_loose = true };
    (void)state;
    assert_string_equal(places(golden("qwen2"), o), "");
    o.place = "zzz=cpu";
    assert_non_null(strchr(places(golden("glm4_moe"), o), '1'));
    o.place = "(zzz=cpu";
    refused(places(golden("glm4_moe"), o), "is wrong");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_apart_give_the_golden_logits),
        cmocka_unit_test(experts_apart_by_the_fastest_kernels_give_the_golden_logits),
        cmocka_unit_test(batches_of_several_sequences_give_what_one_device_gives),
        cmocka_unit_test(copies_to_the_experts_are_waited_for),
        cmocka_unit_test(a_step_can_be_stopped_between_layers),
        cmocka_unit_test(a_failure_of_the_experts_fails_the_step),
        cmocka_unit_test(the_plan_counts_experts_where_they_lie),
        cmocka_unit_test(devices_are_described_with_their_experts),
        cmocka_unit_test(options_choose_the_layers_whose_experts_lie_apart),
        cmocka_unit_test(options_that_a_model_does_not_fit_are_refused_by_name),
        cmocka_unit_test(too_many_patterns_are_refused),
        cmocka_unit_test(loose_options_are_for_the_models_they_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
