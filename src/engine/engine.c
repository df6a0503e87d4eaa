/* engine.c - an engine's life: options, opening, facts, submitting, closing.
 *
 * The engine thread itself is in round.c, token.c and emit.c. Opening goes from the plan over
 * the runner to arrays and threads; engine_close releases in the opposite order and works on a half
 * opened engine, so that every failure takes the same way out. */
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "engine/engine_impl.h"
#include "engine/recommend.h"
#include "format/manifest.h"
#include "format/source.h"
#include "model/loadplan.h"
#include "model/parallel.h"

#include <string.h>

enum {
    REQUESTS_MAX = 1 << 16,
    QUEUE_TOKENS_MAX = 1 << 24,
    QUEUE_CTX = 4096,
    SPARE_REQUESTS = 8,     /* beside those that admission counts: warm-up */
    FURTHER_REQUESTS = 256, /* requests of tickets, beside one of each */
    BLOCKED_NS = 1000000,
    HARD_OVERCOMMIT = 4
};

/* ---- options ---- */

/* In hard mode the KV cache holds one context. */
static struct load_opt load_opt_of(const struct engine_opt *o)
{
    bool alone = o->gang.open == NULL;

    return (struct load_opt){ .gang_source = o->gang,
                              .shard = alone ? (struct shard_opt){ 0 }
                                             : parallel_shard(&o->gang.shape, 0),
                              .backend = { .device = o->device,
                                           .n_threads = o->n_threads,
                                           .reference = o->reference,
                                           .isa = o->isa,
                                           .numa = o->numa,
                                           .profile = o->profile,
                                           .gpu_layers = o->gpu_layers,
                                           .vram_only = o->vram_only,
                                           .cpu_moe = o->cpu_moe,
                                           .n_cpu_moe = o->n_cpu_moe,
                                           .place = o->place,
                                           .place_loose = o->place_loose },
                              .room = o->room,
                              .n_ctx = o->n_ctx,
                              .kv_tokens = HARD && o->kv_tokens >= 0 ? 1 : o->kv_tokens,
                              .max_batch = o->max_batch,
                              .max_seqs = o->max_seqs,
                              .kv_type = o->kv_type,
                              .no_prefix = o->no_prefix,
                              .allow_nan = o->allow_nan,
                              .progress = o->progress };
}

static int check_opt(const struct engine_opt *o, struct err *e)
{
    if (o->max_requests >= 0 && o->max_requests <= REQUESTS_MAX) return OK;
    return err_set(e, E_INVALID,
                   "the number of requests is %d: it must be from 1 to %d, or 0 for the default",
                   o->max_requests, REQUESTS_MAX);
}

/* Prompts of 64 contexts, or of four for every sequence; contexts longer than usual prompts count as
 * QUEUE_CTX tokens, but four whole ones may always wait. */
static int default_queue_tokens(const struct engine_opt *o)
{
    int64_t ctx = o->n_ctx < QUEUE_CTX ? o->n_ctx : QUEUE_CTX;
    int64_t n = ctx * (4 * o->max_seqs > 64 ? 4 * o->max_seqs : 64), least = 4 * (int64_t)o->n_ctx;

    if (n < least) n = least;
    return n < QUEUE_TOKENS_MAX ? (int)n : QUEUE_TOKENS_MAX;
}

/* The queue, by the sizes of the model. */
static void set_queue(struct engine_opt *o)
{
    if (o->max_requests == 0) o->max_requests = 16 * o->max_seqs;
    if (o->max_requests < o->max_seqs) o->max_requests = o->max_seqs;
    if (o->max_queue_tokens == 0) o->max_queue_tokens = default_queue_tokens(o);
}

void engine_expect(struct engine_opt *o, bool gpu)
{
    struct sizes_in in = { .given = { .n_ctx = o->n_ctx,
                                      .kv_tokens = o->kv_tokens,
                                      .max_batch = o->max_batch,
                                      .max_seqs = o->max_seqs },
                           .trained_ctx = o->kv_tokens ? 2 : 0, /* a given cache limits it */
                           .gpu = gpu,
                           .known = true };
    bool has_seqs = o->max_seqs || !gpu, has_requests = o->max_requests || has_seqs,
         has_queue = o->max_queue_tokens || (o->n_ctx && has_seqs);
    struct sizes_out out;

    sizes_choose(&out, &in);
    o->max_batch = out.s.max_batch;
    o->max_seqs = out.s.max_seqs;
    if (o->kv_tokens) o->kv_tokens = out.s.kv_tokens;
    set_queue(o);
    if (!has_seqs) o->max_seqs = 0;
    if (!has_requests) o->max_requests = 0;
    if (!has_queue) o->max_queue_tokens = 0;
}

/* Replaces zeros by defaults; what the plan decided is taken from it. */
static void set_opt(struct engine *g, const struct engine_opt *given)
{
    const struct load_opt *l = &g->plan->opt;
    struct engine_opt *o = &g->opt;

    *o = *given;
    o->n_ctx = l->n_ctx;
    o->kv_tokens = l->kv_tokens;
    o->max_batch = l->max_batch;
    o->max_seqs = l->max_seqs;
    o->kv_type = l->kv_type;
    set_queue(o);
    if (o->kv_overcommit <= 0) o->kv_overcommit = 8;
    if (HARD) o->kv_overcommit *= HARD_OVERCOMMIT;
    if (o->step_ms <= 0) o->step_ms = 100;
    if (o->stretch <= 0) o->stretch = 2.5;
    if (o->age_ms <= 0) o->age_ms = 1000;
}

static void set_limits(struct engine *g)
{
    const struct model_facts *f = &g->plan->facts;

    g->lim = (struct seq_limits){ .n_ctx = g->opt.n_ctx,
                                  .n_vocab = f->n_vocab,
                                  .n_sample = f->n_vocab,
                                  .n_vec = f->n_vec,
                                  .vec_room = pooler_room(&f->pooler),
                                  .no_text = f->task != TASK_GENERATE,
                                  .classifies = f->task == TASK_CLASSIFY };
    /* Rows that only pad the matrix to a round size have no text: they are not sampled. */
    if (g->tokenizer && tokenizer_n(g->tokenizer) < g->lim.n_sample)
        g->lim.n_sample = tokenizer_n(g->tokenizer);
}

/* ---- opening ---- */

/* A model without a tokenizer, or with one that tern does not know, still runs on token ids. */
static int open_tokenizer(struct engine *g, struct err *e)
{
    int rc = tokenizer_from_source(&g->tokenizer, g->plan->source, e);

    if (rc == E_NOTFOUND) return OK;
    if (rc == E_UNSUPPORTED) log_warn("%s; running on token ids only", e->msg);
    return rc == E_UNSUPPORTED ? OK : rc;
}

/* Ids of the runner's blocks and slots, and what is shared of them. */
static int open_ids(struct engine *g, struct err *e)
{
    const struct runner_limits *m = &g->runner->lim;
    int n_saved = g->plan->n_saved, rc;

    if ((rc = block_pool_open(&g->pool, m->n_blocks, e)) != OK) return rc;
    if ((rc = slots_init(&g->slots, m->n_slots - (m->n_slots ? n_saved : 0), e)) != OK) return rc;
    if (g->opt.no_prefix || !m->shares_prefix) return OK;
    if ((rc = prefix_open(&g->prefix, g->pool, e)) != OK) return rc;
    if (m->n_slots == 0) return OK;
    return snaps_open(&g->snaps, g->slots.n, n_saved, g->opt.n_ctx, e);
}

/* Arrays for all requests that can be live. */
static int open_arrays(struct engine *g, struct err *e)
{
    size_t n = (size_t)(g->max_live = g->opt.max_requests + FURTHER_REQUESTS + SPARE_REQUESTS);

    g->live = mem_array(n, sizeof *g->live);
    g->pending = mem_array((size_t)g->opt.max_seqs, sizeof *g->pending);
    g->view = mem_array(n, sizeof *g->view);
    g->order = mem_array(n, sizeof *g->order);
    g->plan_now.run = mem_array(n, sizeof *g->plan_now.run);
    g->plan_now.begin = mem_array(n, sizeof *g->plan_now.begin);
    g->plan_now.preempt = mem_array(n, sizeof *g->plan_now.preempt);
    if (!g->live || !g->pending || !g->view || !g->order || !g->plan_now.run ||
        !g->plan_now.begin || !g->plan_now.preempt)
        return err_set(e, E_NOMEM, "no memory for %zu requests", n);
    if (HARD && !(g->block_uses = mem_array((size_t)block_n(g->pool), sizeof *g->block_uses)))
        return err_nomem(e, "the uses of blocks");
    return chan_open(&g->in, g->max_live, e);
}

/* A member of the model's gang has gone: the engine looks also if it is idle. */
static void wake_engine(void *arg) { chan_poke(arg); }

/* Everything that a step needs, so that steps allocate nothing. */
static int open_memory(struct engine *g, struct err *e)
{
    const struct engine_opt *o = &g->opt;
    struct step_opt s = { .n_sample = g->lim.n_sample, .pooler = g->plan->facts.pooler };
    int rc;

    if ((rc = runner_open(&g->runner, g->plan, e)) != OK) return rc;
    if ((rc = open_ids(g, e)) != OK) return rc;
    if ((rc = step_init(&g->step, g->runner, &s, e)) != OK) return rc;
    if ((rc = open_arrays(g, e)) != OK) return rc;
    if (g->runner->on_lost) g->runner->on_lost(g->runner, wake_engine, g->in);
    admit_init(&g->admit, (struct admit_limits){ .n_ctx = o->n_ctx,
                                                 .block = KV_BLOCK,
                                                 .n_blocks = block_n(g->pool),
                                                 .max_requests = o->max_requests,
                                                 .max_seqs = o->max_seqs,
                                                 .max_queue_tokens = o->max_queue_tokens,
                                                 .kv_overcommit = o->kv_overcommit,
                                                 .max_further = FURTHER_REQUESTS });
    engine_stats_init(&g->own_stats);
    g->stats = o->stats ? o->stats : &g->own_stats;
    gauge_set(&g->stats->kv_total, block_n(g->pool));
    rng_seed(&g->rng, HARD_SEED);
    return OK;
}

/* Needs the tokenizer and the limits; nothing is compiled before the first request asks. */
static int open_grammars(struct engine *g, struct err *e)
{
    int rc;

    ends_find(&g->ends, g->plan->source, g->tokenizer, g->lim.n_vocab);
    if ((rc = guided_init(&g->guided, g->tokenizer, &g->ends, g->lim.n_sample, g->stats, e)) != OK)
        return rc;
    return compiler_init(&g->compiler, &g->guided, g->stats, e);
}

/* The engine thread: rounds while there is work, else asleep until a request arrives. When every
 * reader is behind it looks again after BLOCKED_NS: readers do not wake it. */
static void *engine_main(void *arg)
{
    struct engine *g = arg;

    place_drive(&g->plan->place);
    for (;;) {
        /* Read before the round: the round takes what was submitted before the end. */
        bool quit = atomic_load_explicit(&g->quit, memory_order_acquire);
        enum round what = engine_round(g);
        if (what == ROUND_WORKED) continue;
        if (what == ROUND_IDLE && quit) return NULL;
        chan_wait(g->in, what == ROUND_BLOCKED ? BLOCKED_NS : UINT64_MAX);
    }
}

static int start_thread(struct engine *g, struct err *e)
{
    int rc = thread_start(&g->thread, "tern-engine", engine_main, g, e);

    g->has_thread = rc == OK;
    return rc;
}

/* ---- facts ---- */

/* The type that most of the weights' bytes have. */
static const char *main_dtype(const struct source *src)
{
    uint64_t bytes[DT_COUNT] = { 0 };
    int best = DT_F32;

    for (size_t i = 0; i < source_n_tensors(src); i++) {
        const struct source_tensor *t = source_tensor(src, i);
        if ((int)t->type >= 0 && t->type < DT_COUNT) bytes[t->type] += t->bytes;
    }
    for (int i = 0; i < DT_COUNT; i++)
        if (bytes[i] > bytes[best]) best = i;
    return dtype_name(best);
}

/* The model's name in its file, else the last part of its path ("a/./." names a). */
static struct str model_name(const struct loadplan *p)
{
    struct str name = { 0 };

    if (source_str(p->source, "general.name", &name) && name.n > 0) return name;
    name = str_c(p->path);
    while (name.n > 1 && (str_ends(name, STR("/")) || str_ends(name, STR("/.")))) name.n--;
    for (size_t i = name.n - 1; i-- > 0;)
        if (name.p[i] == '/') return str_skip(name, i + 1);
    return name;
}

static void add_gang(struct engine *g)
{
    struct parallel_stats s;

    g->info.transport = "";
    if (!parallel_stats(g->runner, &s)) return;
    g->info.members = parallel_seats(g->runner, &g->info.n_members);
    g->info.transport = parallel_transport(g->runner);
    g->info.tp = s.tp;
    g->info.pp = s.pp;
}

/* Facts that do not change while the engine is open. */
static int make_info(struct engine *g, struct err *e)
{
    const struct model_facts *f = &g->plan->facts;
    struct load_bytes bytes = loadplan_bytes(g->plan);
    int rc;

    buf_put_str(&g->name, model_name(g->plan));
    loadplan_describe_devices(g->plan, &g->devices);
    g->info = (struct engine_info){ .name = buf_cstr(&g->name),
                                    .arch = f->arch,
                                    .task = model_task_name(f->task),
                                    .dtype = main_dtype(g->plan->source),
                                    .devices = buf_cstr(&g->devices),
                                    .kv_type = dtype_name((int)g->opt.kv_type),
                                    .sizes = g->plan->sizes_text,
                                    .labels = f->labels,
                                    .n_labels = f->n_labels,
                                    .n_vocab = f->n_vocab,
                                    .n_vec = f->n_vec,
                                    .n_params = f->n_params,
                                    .n_blocks = block_n(g->pool),
                                    .block_tokens = KV_BLOCK,
                                    .weight_bytes = bytes.weights,
                                    .kv_bytes = bytes.kv,
                                    .scratch_bytes = bytes.scratch,
                                    .pack_ms = g->runner->pack_ms,
                                    .opt = g->opt };
    add_gang(g);
    yesno_find(&g->info.yesno, g->plan, g->tokenizer, g->opt.ranks_by_answer);
    g->info.opt.device = g->info.opt.place = NULL; /* borrowed from the caller until now */
    if ((rc = buf_check(&g->name, e)) != OK) return rc;
    return buf_check(&g->devices, e);
}

static struct engine_device device_of(const struct runner_device *d)
{
    const struct backend_stats *s = &d->stats;

    return (struct engine_device){ .name = d->name,
                                   .detail = d->detail,
                                   .n_layers = d->n_layers,
                                   .n_experts = d->n_experts,
                                   .counts = d->has_stats,
                                   .weight_bytes = s->bytes[MEM_WEIGHTS],
                                   .kv_bytes = s->bytes[MEM_KV],
                                   .scratch_bytes = s->bytes[MEM_SCRATCH],
                                   .graph_bytes = s->graph_bytes,
                                   .library_bytes = s->library_bytes,
                                   .free_bytes = s->free_bytes,
                                   .total_bytes = s->total_bytes,
                                   .init_ns = s->init_ns,
                                   .read_ns = s->read_ns,
                                   .pack_ns = s->pack_ns,
                                   .upload_ns = s->upload_ns,
                                   .busy_ns = s->busy_ns,
                                   .n_steps = s->n_steps,
                                   .n_graphs = s->n_graphs,
                                   .n_replays = s->n_replays };
}

/* Only the devices' counters are read now; everything else was computed when the engine opened. */
void engine_info(const struct engine *g, struct engine_info *out)
{
    struct runner_device d[ENGINE_DEVICES];
    int n = runner_devices(g->runner, d, ENGINE_DEVICES);

    *out = g->info;
    out->open_ms = g->open_ms;
    out->n_devices = n < ENGINE_DEVICES ? n : ENGINE_DEVICES;
    for (int i = 0; i < out->n_devices; i++) {
        out->device[i] = device_of(&d[i]);
        if (n == g->plan->place.n_shares) /* a gang's devices are not the plan's */
            out->device[i].plan_weights = g->plan->memory[i].mapped + g->plan->memory[i].weights;
        if (!d[i].has_stats) out->device[i].pack_ns = (uint64_t)(g->runner->pack_ms * 1e6);
    }
}

const struct tokenizer *engine_tokenizer(const struct engine *g) { return g->tokenizer; }
bool engine_is_end(const struct engine *g, int32_t id) { return ends_has(&g->ends, id); }
bool engine_keeps_state(const struct engine *g) { return g->snaps != NULL; }
struct engine_stats *engine_stats(struct engine *g) { return g->stats; }

void engine_sample_defaults(const struct engine *g, struct sample_opt *out)
{
    *out = sample_defaults();
    sample_recommended(out, g->plan->source);
}

/* ---- life ---- */

static const struct engine_opt default_opt = { .kv_type = DT_NONE };

int engine_plan(struct loadplan **out, const char *path, const struct engine_opt *opt,
                struct err *e)
{
    struct loadplan *p = NULL;
    struct load_opt load = load_opt_of(opt ? opt : &default_opt);
    int rc;

    if ((rc = loadplan_read(&p, path, e)) != OK) return rc;
    if ((rc = loadplan_make(p, &load, e)) == OK) *out = p;
    else loadplan_close(p);
    return rc;
}

/* Blocks that cannot be read are computed again; a device that fails is an error. */
static int restore_parked(struct engine *g, struct park *p, struct err *e)
{
    int n, rc = engine_unpark(g, p, &n, e);

    g->info.n_restored = n;
    if (rc == OK && n) log_info("%s: %d parked KV blocks are restored", g->plan->path, n);
    return rc;
}

/* Once per load, before the weights are read. */
static int check_manifest(const struct loadplan *p, const struct engine_opt *o, struct err *e)
{
    const char *word = o->verify_manifest;
    enum manifest_mode mode = MANIFEST_OFF;

    if (word && !manifest_mode_by_name(word, &mode))
        return err_set(e, E_INVALID, "verify-manifest %s: must be off, warn or require", word);
    return manifest_enforce(source_path(p->source), mode, e);
}

int engine_open_plan(struct engine **out, struct loadplan *plan, const struct engine_opt *opt,
                     struct err *e)
{
    const struct engine_opt *o = opt ? opt : &default_opt;
    uint64_t start = clock_ns();
    struct engine *g = mem_new(struct engine);
    struct err local;
    int rc;

    if (!e) e = &local;
    if (!g) {
        loadplan_close(plan);
        return err_nomem(e, "the engine");
    }
    g->plan = plan;
    g->warm.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    g->warm.news = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    if ((rc = check_opt(o, e)) != OK) goto out;
    if ((rc = check_manifest(plan, o, e)) != OK) goto out;
    if ((rc = open_tokenizer(g, e)) != OK) goto out;
    set_opt(g, o);
    set_limits(g);
    if ((rc = open_memory(g, e)) != OK) goto out;
    if ((rc = open_grammars(g, e)) != OK) goto out;
    if ((rc = make_info(g, e)) != OK) goto out;
    if (o->park && (rc = restore_parked(g, o->park, e)) != OK) goto out;
    g->open_ms = clock_ms_since(start);
    if (!o->manual && (rc = start_thread(g, e)) != OK) goto out;
    *out = g;
    g = NULL;
out:
    engine_close(g);
    return rc;
}

int engine_open(struct engine **out, const char *path, const struct engine_opt *opt, struct err *e)
{
    uint64_t start = clock_ns();
    struct loadplan *plan = NULL;
    int rc = engine_plan(&plan, path, opt, e);

    if (rc == OK) rc = engine_open_plan(out, plan, opt, e);
    if (rc == OK) (*out)->open_ms = clock_ms_since(start);
    return rc;
}

/* Requests that still run are cancelled and get their last event, jobs of the compiler too. */
void engine_stop(struct engine *g)
{
    if (g->stopped) return;
    g->stopped = true;
    engine_drain(g);
    atomic_store_explicit(&g->quit, true, memory_order_release);
    if (g->in) engine_abort(g);
    if (g->has_thread) pthread_join(g->thread, NULL);
    else
        while (g->in && engine_round(g) != ROUND_IDLE) {}
    compiler_close(&g->compiler);
}

void engine_close(struct engine *g)
{
    if (!g) return;
    engine_stop(g);
    guided_release(&g->guided);
    step_release(&g->step);
    runner_close(g->runner);
    snaps_close(g->snaps);
    slots_release(&g->slots);
    prefix_close(g->prefix);
    block_pool_close(g->pool);
    tokenizer_close(g->tokenizer);
    loadplan_close(g->plan);
    chan_close(g->in);
    buf_release(&g->name);
    buf_release(&g->devices);
    mem_free(g->live);
    mem_free(g->pending);
    mem_free(g->view);
    mem_free(g->order);
    mem_free(g->plan_now.run);
    mem_free(g->plan_now.begin);
    mem_free(g->plan_now.preempt);
    mem_free(g->block_uses);
    mem_free(g);
}

/* ---- submitting ---- */

int engine_grammar(struct engine *g, const struct grammar_spec *spec, struct grammar **out,
                   struct err *e)
{
    return guided_compile(&g->guided, spec, NULL, out, e);
}

int engine_grammar_async(struct engine *g, const struct grammar_spec *spec, uint32_t tenant,
                         void (*done)(struct compile_job *j), void *arg, void *owner,
                         struct grammar **out, struct compile_job **job, struct err *e)
{
    if (atomic_load_explicit(&g->admit.closed, memory_order_acquire))
        return err_set(e, E_SHUTDOWN, "the server is shutting down");
    if ((*out = guided_find(&g->guided, spec))) return OK;
    return compiler_submit(&g->compiler, spec, tenant, done, arg, owner, job, e);
}

static int reject_of(int rc)
{
    switch (rc) {
    case E_CONTEXT: return REJECT_CONTEXT;
    case E_QUEUE_FULL: return REJECT_QUEUE;
    case E_MEMORY: return REJECT_MEMORY;
    case E_DEADLINE: return REJECT_DEADLINE;
    case E_SHUTDOWN: return REJECT_SHUTDOWN;
    default: return REJECT_INVALID;
    }
}

/* Errors that waiting does not mend, before the request is counted. */
static int check_request(struct engine *g, struct request *r, struct err *e)
{
    int rc, n;

    if ((rc = engine_error(g, e)) != OK) return rc;
    if (atomic_load_explicit(&g->quit, memory_order_acquire))
        return err_set(e, E_SHUTDOWN, "the server is shutting down");
    if ((rc = seq_check(r, &g->lim, e)) != OK) return rc;
    if (g->runner->lim.bidirectional && r->prompt.n > (size_t)g->opt.max_batch)
        return err_set(e, E_CONTEXT,
                       "the text has %zu tokens, but a step has %d at most and must hold all of "
                       "them: see max-batch",
                       r->prompt.n, g->opt.max_batch);
    if ((n = r->embed ? g->lim.n_vec : r->n_pick) && !r->vec &&
        !(r->vec = mem_array((size_t)n, sizeof *r->vec)))
        return err_nomem(e, "the vector of a text");
    return OK;
}

int engine_admit(struct engine *g, struct ticket *t, const struct ids *prompts, int n,
                 uint64_t deadline_ns, struct err *e)
{
    int rc = engine_error(g, e);

    if (rc == OK) rc = admit_ticket(&g->admit, t, prompts, n, deadline_ns, clock_ns(), e);
    if (rc != OK) counter_add(&g->stats->rejected[reject_of(rc)], 1);
    return rc;
}

void engine_give_back(struct engine *g, struct ticket *t) { admit_give_back(&g->admit, t); }

/* The crossing: before chan_push the request is the submitter's, after it the engine's. */
int engine_submit(struct engine *g, struct request *r, struct err *e)
{
    int rc = check_request(g, r, e);

    r->submit_ns = clock_ns();
    r->arrival_ns = r->ticket ? r->ticket->arrival_ns : r->submit_ns;
    if (rc == OK) rc = admit_request(&g->admit, r, r->submit_ns, e);
    if (rc != OK) {
        counter_add(&g->stats->rejected[reject_of(rc)], 1);
        return rc;
    }
    request_ref(r);
    atomic_store_explicit(&r->state, REQ_QUEUED, memory_order_relaxed);
    if (!chan_push(g->in, r)) { /* several threads passed admission at once */
        admit_release(&g->admit, r);
        request_unref(r);
        counter_add(&g->stats->rejected[REJECT_QUEUE], 1);
        rc = err_set(e, E_QUEUE_FULL, "%d requests wait or run; the limit is reached", g->max_live);
        if (e) e->retry_ms = admit_retry_ms(&g->admit);
        return rc;
    }
    if (!r->quiet) counter_add(&g->stats->submitted, 1);
    return OK;
}

void engine_drain(struct engine *g)
{
    atomic_store_explicit(&g->admit.closed, 1, memory_order_release);
}

void engine_abort(struct engine *g)
{
    atomic_store_explicit(&g->abort, true, memory_order_release);
    chan_poke(g->in);
}

int engine_n_admitted(struct engine *g)
{
    return atomic_load_explicit(&g->admit.n_requests, memory_order_acquire);
}

bool engine_is_idle(struct engine *g) { return engine_n_admitted(g) == 0; }

/* Events are emitted at once: no next step may come to do it. */
bool engine_step(struct engine *g)
{
    bool worked = engine_round(g) == ROUND_WORKED;

    engine_emit(g);
    return worked;
}
