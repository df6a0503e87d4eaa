/* decoder.c - a batch through all layers, on one device or through several one after the other.
 *
 * On a GPU (a backend with flush) operations are queued: start queues the first pieces and returns,
 * wait queues the rest as the device works through them, asking between pieces whether the results
 * are still wanted. On the CPU operations run when they are called, all of them in wait. With two
 * devices the rows cross through host memory between their passes. Experts that lie apart from their
 * layers (apart.h) run when a layer is queued: then all of a step is queued in wait, too. */
#include "model/decoder_impl.h"

#include "base/mem.h"
#include "model/rotary.h"
#include "model/shard.h"
#include "model/weightlist.h"

enum {
    AHEAD = 2, /* pieces of a step queued before the device has finished the first */
    PIECE_TOKENS =
        512,         /* tokens times layers of a piece: smaller ones do not outlast their launch */
    CHUNK_GPU = 256, /* prefill tokens: fewer take a GPU almost as long */
    WARM_CPU = 4
};

static struct decoder *decoder_of(const struct runner *r) { return (struct decoder *)r; }
struct model *decoder_model(const struct runner *r) { return decoder_of(r)->m; }
float *decoder_inlet(const struct runner *r) { return decoder_of(r)->inlet.x; }
float *decoder_outlet(const struct runner *r) { return decoder_of(r)->outlet.x; }

static struct pass *last_pass(const struct decoder *d)
{
    return (struct pass *)&d->passes[d->n_passes - 1];
}

/* ---- opening ---- */

static int open_crossing(struct crossing *c, const struct decoder *d, struct backend *to,
                         struct err *e)
{
    c->bytes = (size_t)d->r.lim.max_tokens * (size_t)d->m->hp.n_embd * sizeof(float);
    if (to->host_alloc) {
        c->owner = to;
        return to->host_alloc(to, (void **)&c->x, c->bytes, e);
    }
    c->x = mem_aligned(c->bytes);
    return c->x ? OK : err_nomem(e, "the rows that pass from one device to the next");
}

static void close_crossing(struct crossing *c)
{
    if (c->x && c->owner) c->owner->host_free(c->owner, c->x, c->bytes);
    else if (c->x) mem_free_aligned(c->x, c->bytes);
}

/* The part of the model on device i, with its scratch. */
static int open_pass(struct decoder *d, int i, const struct decoder_opt *opt, struct err *e)
{
    struct model *m = d->m;
    struct pass *p = &d->passes[d->n_passes++];
    int rc;

    *p = (struct pass){ .m = m, .part = &m->parts[i], .be = m->parts[i].be, .seq_end = d->seq_end };
    kvstore_view(d->kv, &p->kv);
    state_store_view(d->states, &p->st);
    if ((rc = scratch_init(&p->s, m, p->part, *opt, e)) != OK) return rc;
    if (p->s.experts & EXPERTS_APART &&
        (rc = apart_open(&p->apart, m->experts.be, p->be, &m->hp, opt->max_tokens, e)) != OK)
        return rc;
    return i > 0 ? open_crossing(&d->cross[i], d, p->be, e) : OK;
}

/* Rows from the stage before and to the next; the sums of a stage's members. */
static int open_stage(struct decoder *d, struct err *e)
{
    struct shard *s = (struct shard *)d->m->hp.shard;
    int rc = OK;

    for (int i = 0; s && i < d->m->n_parts && rc == OK; i++)
        rc = shard_reserve(s, d->m->parts[i].be, d->r.lim.max_tokens, e);
    if (rc == OK && !shard_has_embd(&d->m->hp))
        rc = open_crossing(&d->inlet, d, d->m->parts[0].be, e);
    if (rc == OK && !shard_has_head(&d->m->hp))
        rc = open_crossing(&d->outlet, d, d->m->parts[d->m->n_parts - 1].be, e);
    return rc;
}

/* KV blocks, recurrent state and the scratch of every device. */
static int open_memory(struct decoder *d, const struct decoder_opt *opt, struct err *e)
{
    struct backend_share shares[MODEL_PARTS];
    struct model *m = d->m;
    size_t n = opt->max_seqs > 0 ? (size_t)opt->max_seqs : 1;
    int rc;

    for (int i = 0; i < m->n_parts; i++)
        shares[i] = (struct backend_share){ m->parts[i].be, m->parts[i].end - m->parts[i].first };
    d->seq_end = mem_array(n, sizeof *d->seq_end);
    d->n_of = mem_array(n, sizeof *d->n_of);
    d->runs = mem_array(n, sizeof *d->runs);
    if (!d->seq_end || !d->n_of || !d->runs) return err_nomem(e, "the sequences of a batch");
    if ((rc = kvstore_open(&d->kv, shares, m->n_parts, m->kv, opt->kv_type, opt->n_blocks, e)) !=
        OK)
        return rc;
    if ((rc = state_store_open(&d->states, shares, m->n_parts, m->state,
                               opt->n_slots ? opt->n_slots : opt->max_seqs, e)) != OK)
        return rc;
    for (int i = 0; i < m->n_parts; i++)
        if ((rc = open_pass(d, i, opt, e)) != OK) return rc;
    return open_stage(d, e);
}

static void close_decoder(struct runner *r)
{
    struct decoder *d = decoder_of(r);

    for (int i = 0; i < d->n_passes; i++) {
        close_crossing(&d->cross[i]);
        apart_close(&d->passes[i].apart);
        scratch_release(&d->passes[i].s);
    }
    close_crossing(&d->inlet);
    close_crossing(&d->outlet);
    if (d->m->hp.shard) shard_release((struct shard *)d->m->hp.shard);
    state_store_close(d->states);
    kvstore_close(d->kv);
    if (d->owns_model) model_close(d->m);
    mem_free(d->runs);
    mem_free(d->seq_end);
    mem_free(d->n_of);
    mem_free(d);
}

static int start_batch(struct runner *r, const struct batch *b, struct err *e);
static int wait_batch(struct runner *r, const float **logits, struct err *e);

static void copy_state(struct runner *r, int to, int from)
{
    state_store_copy(decoder_of(r)->states, to, from);
}

static void read_block(struct runner *r, int id, void *data)
{
    kvstore_read(decoder_of(r)->kv, id, data);
}

static void write_block(struct runner *r, int id, const void *data)
{
    kvstore_write(decoder_of(r)->kv, id, data);
}

static int sync_blocks(struct runner *r, struct err *e)
{
    return kvstore_sync(decoder_of(r)->kv, e);
}

/* Layers whose experts lie on be, though the layers do not. */
static int count_apart(const struct decoder *d, const struct backend *be)
{
    int n = 0;

    for (int l = 0; be == d->m->experts.be && l < d->m->hp.n_layers; l++) n += d->m->apart[l];
    return n;
}

static struct runner_device device_of(const struct decoder *d, const struct backend *be,
                                      int n_layers)
{
    struct runner_device out = { .name = be->name,
                                 .detail = be->detail,
                                 .n_layers = n_layers,
                                 .n_experts = count_apart(d, be),
                                 .has_stats = be->stats != NULL };

    if (be->stats) be->stats(be, &out.stats);
    return out;
}

/* Any thread: names do not change, and stats are the backend's own to guard. A device with experts only
 * comes first, as in the load plan. */
static int list_devices(const struct runner *r, struct runner_device *out, int max)
{
    const struct decoder *d = decoder_of(r);
    const struct backend *rest = d->m->experts.be;
    int n = 0;

    for (int i = 0; i < d->n_passes; i++)
        if (d->passes[i].be == rest) rest = NULL;
    if (rest && n++ < max) out[0] = device_of(d, rest, 0);
    for (int i = 0; i < d->n_passes; i++, n++) {
        const struct part *p = d->passes[i].part;
        if (n < max) out[n] = device_of(d, d->passes[i].be, p->end - p->first);
    }
    return n;
}

/* The code of a GPU's large steps is loaded when the first one runs, which takes longer than the
 * step itself: so the warm-up is a large one. */
static struct runner_limits limits_of(const struct decoder *d, const struct decoder_opt *opt)
{
    const struct hparams *hp = &d->m->hp;
    const struct scratch *s = &last_pass(d)->s;
    bool gpu = !backend_is_host(last_pass(d)->be);

    return (struct runner_limits){ .n_vocab = hp->n_vocab,
                                   .n_vec = hp->n_embd,
                                   .max_tokens = opt->max_tokens,
                                   .max_seqs = opt->max_seqs,
                                   .max_table = opt->max_table,
                                   .max_out = opt->max_out,
                                   .max_adjust = s->max_adjust,
                                   .n_blocks = opt->n_blocks,
                                   .n_slots = state_store_n(d->states),
                                   .min_chunk = gpu ? CHUNK_GPU : 2 * KV_BLOCK,
                                   .warm_tokens = gpu && d->n_passes == 1 && !d->m->experts.be
                                                      ? opt->max_tokens
                                                      : WARM_CPU,
                                   .warm_output = gpu ? 2 : 1, /* a step that only decodes */
                                   .block_bytes = kvstore_block_size(d->kv),
                                   .samples = s->sampled != NULL && !hp->shard,
                                   .bidirectional = hp->encoder,
                                   .shares_prefix = !hp->encoder };
}

int decoder_open(struct runner **out, struct model *m, const struct decoder_opt *opt, struct err *e)
{
    struct decoder *d = mem_new(struct decoder);
    int rc;

    if (!d) return err_nomem(e, "the decoder");
    d->m = m;
    d->r = (struct runner){ .lim = { .max_tokens = opt->max_tokens },
                            .pack_ms = m->put_ms,
                            .start = start_batch,
                            .wait = wait_batch,
                            .copy_state = copy_state,
                            .read_block = read_block,
                            .write_block = write_block,
                            .sync_blocks = sync_blocks,
                            .devices = list_devices,
                            .close = close_decoder };
    if ((rc = open_memory(d, opt, e)) != OK) {
        close_decoder(&d->r);
        return rc;
    }
    d->owns_model = opt->owns_model;
    d->r.lim = limits_of(d, opt);
    *out = &d->r;
    return OK;
}

/* ---- checks that only a decoder needs ---- */

static int check_positions(const struct decoder *d, const struct batch *b, struct err *e)
{
    for (int t = 0; d->m->positions.rows && t < b->n_tokens; t++)
        if (b->pos[t] >= d->m->positions.rows)
            return err_set(e, E_INVALID,
                           "position %d of sequence %d is beyond the %d that the model has learned",
                           b->pos[t], b->seq[t], d->m->positions.rows);
    return OK;
}

/* Recurrent state goes from token to token, so the tokens of a sequence must follow each other.
 * Fills d->runs with each sequence's neighbours. */
static int make_runs(struct decoder *d, const struct batch *b, struct err *e)
{
    d->n_runs = 0;
    for (int t = 0; t < b->n_tokens; t++) {
        int seq = b->seq[t], slot = b->slots ? b->slots[seq] : seq;

        if (t > 0 && b->seq[t - 1] == seq && b->pos[t] == b->pos[t - 1] + 1) {
            d->runs[d->n_runs - 1].n++;
            continue;
        }
        for (int i = 0; i < d->n_runs; i++)
            if (d->runs[i].slot == slot)
                return err_set(e, E_INVALID,
                               "token %d: the tokens of sequence %d do not follow each other", t,
                               seq);
        if (slot < 0 || slot >= d->r.lim.n_slots)
            return err_set(e, E_INVALID, "sequence %d has slot %d of %d", seq, slot,
                           d->r.lim.n_slots);
        d->runs[d->n_runs++] = (struct state_run){ slot, t, 1, b->pos[t] == 0 };
    }
    return OK;
}

static int check_batch(struct decoder *d, const struct batch *b, struct err *e)
{
    int rc = batch_check(b, &d->r.lim, d->seq_end, d->n_of, e);

    if (rc == OK) rc = check_positions(d, b, e);
    if (rc == OK && d->states) rc = make_runs(d, b, e);
    return rc;
}

int decoder_check(struct runner *r, const struct batch *b, struct err *e)
{
    return check_batch(decoder_of(r), b, e);
}

/* ---- rotary tables ---- */

/* Frequencies that depend on the length of the sequence (longrope, dynamic): one vector for each
 * sequence beyond the model's original length, and one table per run of tokens that share a
 * vector. */
static void make_varying_table(struct pass *p, const struct batch *b, int kind)
{
    const struct rope_hp *r = &p->m->hp.rope[kind];
    struct scratch *s = &p->s;
    size_t half = (size_t)r->n_rot / 2, base = (size_t)kind * (size_t)s->opt.max_seqs * half;
    struct tensor *run = s->runs + (size_t)kind * (size_t)s->opt.max_tokens;

    for (int i = 0; i < b->n_seqs; i++)
        if (rotary_is_long(r, p->seq_end[i]))
            rotary_freq(r, p->seq_end[i], s->freq_host + base + (size_t)i * half);
    p->be->put(p->be, s->freq + base, s->freq_host + base,
               (size_t)b->n_seqs * half * sizeof(float));

    for (int t = 0, end; t < b->n_tokens; t = end, run++) {
        int seq = b->seq[t];
        bool is_long = rotary_is_long(r, p->seq_end[seq]);
        const float *freq =
            is_long ? s->freq + base + (size_t)seq * half : p->part->rope_freq[kind];
        for (end = t + 1; end < b->n_tokens; end++) {
            bool other = rotary_is_long(r, p->seq_end[b->seq[end]]);
            if (other != is_long || (is_long && b->seq[end] != seq)) break;
        }
        *run = tensor_f32(s->table[kind] + (size_t)t * (size_t)r->n_rot, end - t, r->n_rot);
        p->be->rope_table(p->be, run, p->kv.pos + t, freq, r->n_rot,
                          (float)rotary_factor(r, p->seq_end[seq]));
    }
}

static void make_rope_tables(struct pass *p, const struct batch *b)
{
    for (int i = 0; i < p->m->hp.n_rope; i++) {
        const struct rope_hp *r = &p->m->hp.rope[i];
        if (rotary_varies(r)) make_varying_table(p, b, i);
        else
            p->be->rope_table(p->be, &p->s.table_t[i], p->kv.pos, p->part->rope_freq[i], r->n_rot,
                              (float)r->attn_factor);
    }
}

/* ---- layers ---- */

static void queue_layer(struct pass *p, int l, const struct batch *b, bool gathered)
{
    int n_out = b->n_out + b->n_hidden;
    bool last = l == p->m->hp.n_layers - 1 && p->s.last;

    pass_attention(p, l, !last || n_out > 0);
    if (last && n_out == 0) return; /* a chunk without outputs: only its KV is wanted */
    pass_attend(p, l);
    if (last && gathered) pass_gather(p, l);
    pass_rest(p, l);
}

/* Copies the rows of logits that no token was sampled from, neighbours in one transfer. */
static void get_logits(struct pass *p, const struct batch *b)
{
    size_t row = (size_t)p->s.logits_t.cols;

    for (int i = 0, k = 0; i < b->n_out;) {
        int end = k < b->n_samples ? b->samples[k].row : b->n_out;
        if (i < end)
            p->be->get(p->be, p->s.logits_host + (size_t)i * row, p->s.logits + (size_t)i * row,
                       (size_t)(end - i) * row * sizeof(float));
        i = end + 1;
        k++;
    }
}

/* Rows that only pad the vocabulary are cut off: they are never sampled. */
static void sample_tokens(struct pass *p, const struct batch *b)
{
    struct scratch *s = &p->s;

    s->sample_t = tensor_cols(s->logits_t, 0, b->n_sample_ids);
    p->be->sample(p->be, s->sampled, &s->sample_t, p->samples, b->n_samples, p->adjust);
    p->be->get(p->be, b->sampled, s->sampled, (size_t)b->n_samples * sizeof *b->sampled);
}

/* Copies the wanted hidden rows, neighbours in one transfer. */
static void get_hidden(struct pass *p, const struct batch *b, const struct tensor *x)
{
    for (int i = 0, n; i < b->n_hidden; i += n) {
        for (n = 1; i + n < b->n_hidden && b->hidden_rows[i + n] == b->hidden_rows[i] + n; n++) {}
        p->be->get(p->be, b->hidden + (size_t)i * (size_t)x->cols, tensor_row(x, b->hidden_rows[i]),
                   (size_t)n * (size_t)x->cols * sizeof *b->hidden);
    }
}

/* From the last layer's rows to results: hidden rows, logits, sampled tokens. */
static void queue_head(struct pass *p, const struct batch *b)
{
    const struct tensor *x = pass_last(p);

    if (b->n_hidden) get_hidden(p, b, x);
    if (b->n_hidden || p->m->hp.altup.n || p->m->hp.hyper.n) {
        if (!b->n_out) return;
        p->be->gather(p->be, &p->s.chosen_t, x, p->out_rows);
        x = &p->s.chosen_t;
    }
    pass_head(p, x);
    if (b->n_samples) sample_tokens(p, b);
    if (p->s.logits_host) get_logits(p, b);
}

static bool wants_all_rows(const struct batch *b)
{
    if (b->n_out != b->n_tokens) return false;
    for (int i = 0; i < b->n_out; i++)
        if (b->out_rows[i] != i) return false;
    return true;
}

/* ---- a batch through all passes ---- */

static bool is_stopped(const struct decoder *d) { return d->b.stop && d->b.stop(d->b.stop_arg); }

/* Bytes of the rows that pass from one device to the next. */
static size_t cross_bytes(const struct decoder *d)
{
    return (size_t)d->b.n_tokens * (size_t)d->m->hp.n_embd * sizeof(float);
}

/* All tokens go to the end: their hidden rows are wanted, or there are several streams of them. */
static bool keeps_all(const struct decoder *d)
{
    return d->b.n_hidden || d->m->hp.altup.n || d->m->hp.hyper.n;
}

/* Arguments, arrays and the first rows of a pass: embeddings, or what the device before it left. */
static void begin_pass(struct decoder *d)
{
    struct pass *p = &d->passes[d->at];
    int n_tail = keeps_all(d) ? d->b.n_tokens : d->b.n_out;

    d->begun = true;
    d->queued = false;
    d->layer = p->part->first;
    p->apart.failed = (struct err){ 0 };
    scratch_plan(&p->s, d->m, d->b.n_tokens, n_tail, d->b.n_out, d->gathered);
    stage_batch(p, d, &d->b);
    if (d->at == 0 && d->inlet.x) p->be->put(p->be, p->s.x, d->inlet.x, cross_bytes(d));
    else if (d->at == 0) pass_embed(p);
    else p->be->put(p->be, p->s.x, d->cross[d->at].x, cross_bytes(d));
    make_rope_tables(p, &d->b);
}

/* Small steps are queued whole, large ones in pieces that each start at once. A layer whose experts lie
 * apart is a piece: the next one may no longer be wanted when they have run. */
static int layers_of_piece(const struct decoder *d, const struct pass *p)
{
    int n = 1;

    if (!p->be->flush || d->m->apart[d->layer]) return 1;
    if (d->b.n_tokens <= p->be->whole_tokens) n = d->m->hp.n_layers;
    else if (d->b.n_tokens < PIECE_TOKENS) n = PIECE_TOKENS / d->b.n_tokens;
    for (int l = d->layer + 1; l < d->layer + n && l < p->part->end; l++)
        if (d->m->apart[l]) return l - d->layer;
    return n;
}

/* Queues the next layers, and after the last one of the pass the transfer to the next device or the
 * head. */
static void queue_piece(struct decoder *d)
{
    struct pass *p = &d->passes[d->at];
    const bool *apart = d->m->apart;

    for (int n = layers_of_piece(d, p); n > 0 && d->layer < p->part->end; n--)
        queue_layer(p, d->layer++, &d->b, d->gathered);
    d->queued = d->layer == p->part->end;
    /* Before and behind a layer with experts apart, what is queued goes with what comes: all of it
     * starts when its experts do, and may be a graph. */
    if (!d->queued && p->be->flush && !apart[d->layer - 1] && !apart[d->layer])
        p->be->flush(p->be, false);
    if (!d->queued) return;
    if (p != last_pass(d)) p->be->get(p->be, d->cross[d->at + 1].x, p->s.x, cross_bytes(d));
    else if (d->outlet.x) p->be->get(p->be, d->outlet.x, p->s.x, cross_bytes(d));
    else if (d->b.n_out + d->b.n_hidden) queue_head(p, &d->b);
}

/* A batch that is stopped before it starts costs nothing. */
static int start_batch(struct runner *r, const struct batch *b, struct err *e)
{
    struct decoder *d = decoder_of(r);
    struct backend *be = d->passes[0].be;
    int rc = check_batch(d, b, e);

    if (rc != OK) return rc;
    d->b = *b;
    d->gathered = !keeps_all(d) && !wants_all_rows(b);
    d->at = 0;
    d->begun = d->queued = false;
    /* operations run when they are called: in wait_batch */
    if (!be->flush || d->passes[0].apart.be) return OK;
    if (is_stopped(d)) return batch_stopped(e);
    begin_pass(d);
    for (int i = 0; i < AHEAD && !d->queued; i++) queue_piece(d);
    if (d->queued) be->flush(be, true);
    return OK;
}

/* Queues what is left of the pass and waits for the device. */
static int finish_pass(struct decoder *d, struct err *e)
{
    struct backend *be = d->passes[d->at].be;
    int rc;

    if (!d->begun) begin_pass(d);
    while (!d->queued) {
        if (be->flush) be->throttle(be, AHEAD - 1);
        if (is_stopped(d)) {
            rc = be->sync(be, e);
            return rc != OK ? rc : batch_stopped(e);
        }
        queue_piece(d);
    }
    rc = be->sync(be, e);
    if (rc != OK || d->passes[d->at].apart.failed.code == OK) return rc;
    if (e) *e = d->passes[d->at].apart.failed;
    return d->passes[d->at].apart.failed.code;
}

/* Failures of a sum over the members of the stage. */
static int take_failure(const struct decoder *d, struct err *e)
{
    const struct shard *s = d->m->hp.shard;

    if (!s || s->failed.code == OK) return OK;
    if (e) *e = s->failed;
    return s->failed.code;
}

static int wait_batch(struct runner *r, const float **logits, struct err *e)
{
    struct decoder *d = decoder_of(r);
    const struct scratch *s = &last_pass(d)->s;
    int rc = OK;

    for (; d->at < d->n_passes && rc == OK; d->at++, d->begun = false) rc = finish_pass(d, e);
    *logits = s->logits_host ? s->logits_host : s->logits;
    return rc == OK ? take_failure(d, e) : rc;
}
