#include "model/decoder.h"

#include "base/mem.h"
#include "model/pass.h"
#include "model/onnxpass.h"
#include "model/rotary.h"

enum {
    LEAST_ADJUST = 256,
    AHEAD = 2,         /* pieces that a device is given before it is done with the first */
    PIECE_TOKENS = 512 /* tokens times layers of a piece: fewer do not outlast their launch */
};

struct decoder {
    struct model *m;
    struct block_pool *pool;
    struct state_pool *states; /* NULL: the model has no recurrent state */
    struct state_run *runs;    /* [max_seqs] of this batch */
    int n_runs;
    struct decoder_opt opt;
    struct pass passes[MODEL_PARTS];
    int n_passes;
    int32_t *seq_end; /* [max_seqs] tokens each sequence has after this batch */
    int32_t *n_of;    /* [max_seqs] and how many of them are in it */
    struct crossing {
        float *x; /* [max_tokens][n_embd] on the host, from one device to the next */
        size_t bytes;
        struct backend *owner; /* NULL: plain memory */
    } cross[MODEL_PARTS];      /* before each pass but the first */
    /* what was started */
    struct batch b;
    bool gathered;
    int at;            /* the pass it is in */
    bool begun, asked; /* that pass was begun; all of it was asked for */
    int layer;         /* the next one to ask for */
};

static struct pass *last_pass(const struct decoder *d)
{
    return (struct pass *)&d->passes[d->n_passes - 1];
}

static int open_crossing(struct crossing *c, const struct decoder *d, struct backend *to,
                         struct err *e)
{
    c->bytes = (size_t)d->opt.max_tokens * (size_t)d->m->hp.n_embd * sizeof(float);
    if (to->host_alloc) {
        c->owner = to;
        return to->host_alloc(to, (void **)&c->x, c->bytes, e);
    }
    c->x = mem_aligned(c->bytes);
    return c->x ? OK : err_set(e, E_NOMEM, "no memory for %zu bytes between two devices", c->bytes);
}

static void close_crossing(struct crossing *c)
{
    if (c->x && c->owner) c->owner->host_free(c->owner, c->x, c->bytes);
    else if (c->x) mem_free_aligned(c->x, c->bytes);
}

/* A slot for every row of a batch's table. */
static int open_states(struct decoder *d, struct err *e)
{
    struct backend_share shares[MODEL_PARTS];

    for (int i = 0; i < d->m->n_parts; i++) {
        const struct part *p = &d->m->parts[i];
        shares[i] = (struct backend_share){ p->be, p->end - p->first };
    }
    if (!model_has_state(d->m)) return OK;
    d->runs = mem_array((size_t)d->opt.max_seqs, sizeof *d->runs);
    return state_pool_open(&d->states, shares, d->m->n_parts, model_stateshape(d->m),
                           d->opt.max_seqs, e);
}

struct state_pool *decoder_states(struct decoder *d) { return d->states; }

int decoder_open(struct decoder **out, struct model *m, struct block_pool *kv,
                 struct decoder_opt opt, struct err *e)
{
    struct decoder *d = mem_new(struct decoder);
    int rc;

    d->m = m;
    d->pool = kv;
    d->opt = opt;
    d->seq_end = mem_array(opt.max_seqs > 0 ? (size_t)opt.max_seqs : 1, sizeof *d->seq_end);
    d->n_of = mem_array(opt.max_seqs > 0 ? (size_t)opt.max_seqs : 1, sizeof *d->n_of);
    if (!d->seq_end) {
        rc = err_set(e, E_NOMEM, "no memory for %d sequences", opt.max_seqs);
        goto out;
    }
    if ((rc = open_states(d, e)) != OK) goto out;
    if (m->onnx && (rc = onnxpass_plan(m->onnx, opt.max_tokens, opt.max_seqs,
                                       opt.max_table * KV_BLOCK, e)) != OK)
        goto out;
    for (int i = 0; i < m->n_parts && !m->onnx; i++) {
        struct pass *p = &d->passes[d->n_passes++];
        *p = (struct pass){
            .m = m, .part = &m->parts[i], .be = m->parts[i].be, .seq_end = d->seq_end
        };
        block_view(kv, &p->kv);
        state_view(d->states, &p->st);
        if ((rc = scratch_init(&p->s, m, p->part, opt, e)) != OK) goto out;
        if (i > 0 && (rc = open_crossing(&d->cross[i], d, p->be, e)) != OK) goto out;
    }
    *out = d;
    d = NULL;
out:
    decoder_close(d);
    return rc;
}

void decoder_close(struct decoder *d)
{
    if (!d) return;
    for (int i = 0; i < d->n_passes; i++) {
        close_crossing(&d->cross[i]);
        scratch_release(&d->passes[i].s);
    }
    state_pool_close(d->states);
    mem_free(d->runs);
    mem_free(d->seq_end);
    mem_free(d->n_of);
    mem_free(d);
}

/* ---- the batch ---- */

static int check_token(struct decoder *d, const struct batch *b, int t, struct err *e)
{
    int32_t pos = b->pos[t], seq = b->seq[t], block;
    if (b->ids[t] < 0 || b->ids[t] >= d->m->hp.n_vocab)
        return err_set(e, E_INVALID, "token id %d is outside the vocabulary of %d", b->ids[t],
                       d->m->hp.n_vocab);
    if (seq < 0 || seq >= b->n_seqs || pos < 0 || pos / KV_BLOCK >= b->table_stride)
        return err_set(e, E_INVALID,
                       "token %d at position %d of sequence %d is outside the batch's table", t,
                       pos, seq);
    if (d->m->positions.rows && pos >= d->m->positions.rows)
        return err_set(e, E_INVALID,
                       "position %d of sequence %d is beyond the %d that the model knows", pos, seq,
                       d->m->positions.rows);
    block = b->table[(size_t)seq * (size_t)b->table_stride + (size_t)(pos / KV_BLOCK)];
    if (block < 0 || block >= block_n(d->pool))
        return err_set(e, E_INVALID, "position %d of sequence %d lies in block %d of %d", pos, seq,
                       block, block_n(d->pool));
    if (d->seq_end[seq] <= pos) d->seq_end[seq] = pos + 1;
    return OK;
}

static int check_picks(struct decoder *d, const struct batch *b, struct err *e)
{
    int n_vocab = d->m->hp.n_vocab;
    bool good = decoder_can_pick(d) && b->n_picks <= b->n_out && b->n_adjust >= 0 &&
                b->n_adjust <= decoder_max_adjust(d) && b->n_pick_from > 0 &&
                b->n_pick_from <= n_vocab && b->picked;

    for (int i = 0; good && i < b->n_picks; i++) {
        const struct sample_row *p = &b->picks[i];
        good = p->row > (i ? p[-1].row : -1) && p->row < b->n_out && p->adjust >= 0 &&
               p->n_adjust >= 0 && p->n_adjust <= b->n_adjust - p->adjust;
    }
    for (int i = 0; good && i < b->n_adjust; i++)
        good = b->adjust[i].id >= 0 && b->adjust[i].id < n_vocab;
    return good ? OK
                : err_set(e, E_INVALID, "%d picks of %d outputs do not fit the batch", b->n_picks,
                          b->n_out);
}

/* State goes from token to token: those of a sequence must follow each other. */
static int check_runs(struct decoder *d, const struct batch *b, struct err *e)
{
    d->n_runs = 0;
    for (int t = 0; t < b->n_tokens; t++) {
        int seq = b->seq[t], slot = b->slots ? b->slots[seq] : seq;
        struct state_run *run = d->n_runs ? &d->runs[d->n_runs - 1] : NULL;

        if (t > 0 && b->seq[t - 1] == seq && b->pos[t] == b->pos[t - 1] + 1) {
            run->n++;
            continue;
        }
        for (int i = 0; i < d->n_runs; i++)
            if (d->runs[i].slot == slot)
                return err_set(e, E_INVALID,
                               "token %d: the tokens of sequence %d do not follow each other", t,
                               seq);
        if (slot < 0 || slot >= state_n(d->states))
            return err_set(e, E_INVALID, "sequence %d has slot %d of %d", seq, slot,
                           state_n(d->states));
        d->runs[d->n_runs++] = (struct state_run){ slot, t, 1, b->pos[t] == 0 };
    }
    return OK;
}

/* Who looks both ways must have all of a text at once, and makes no logits. */
static int check_encoder(struct decoder *d, const struct batch *b, struct err *e)
{
    if (b->n_out) return err_set(e, E_INVALID, "an encoder has no logits");
    for (int i = 0; i < b->n_seqs; i++) d->n_of[i] = 0;
    for (int t = 0; t < b->n_tokens; t++) d->n_of[b->seq[t]]++;
    for (int i = 0; i < b->n_seqs; i++)
        if (d->n_of[i] && d->n_of[i] != d->seq_end[i])
            return err_set(e, E_INVALID,
                           "%d of %d tokens of sequence %d: an encoder needs all at once",
                           d->n_of[i], d->seq_end[i], i);
    return OK;
}

static int check(struct decoder *d, const struct batch *b, struct err *e)
{
    const struct decoder_opt *o = &d->opt;
    int rc;
    if (b->n_tokens < 1 || b->n_tokens > o->max_tokens || b->n_seqs < 1 ||
        b->n_seqs > o->max_seqs || b->table_stride < 1 || b->table_stride > o->max_table ||
        b->n_out < 0 || b->n_out > o->max_out)
        return err_set(
            e, E_INVALID,
            "a batch of %d tokens of %d sequences (%d blocks each, %d outputs) is over the "
            "decoder's limits of %d, %d, %d, %d",
            b->n_tokens, b->n_seqs, b->table_stride, b->n_out, o->max_tokens, o->max_seqs,
            o->max_table, o->max_out);
    for (int i = 0; i < b->n_seqs; i++) d->seq_end[i] = b->seq_len ? b->seq_len[i] : 0;
    for (int t = 0; t < b->n_tokens; t++)
        if ((rc = check_token(d, b, t, e)) != OK) return rc;
    for (int i = 0; i < b->n_out; i++)
        if (b->out_rows[i] < 0 || b->out_rows[i] >= b->n_tokens)
            return err_set(e, E_INVALID, "output row %d is not one of %d tokens", b->out_rows[i],
                           b->n_tokens);
    for (int i = 0; i < b->n_hidden; i++)
        if (b->hidden_rows[i] <= (i ? b->hidden_rows[i - 1] : -1) ||
            b->hidden_rows[i] >= b->n_tokens)
            return err_set(e, E_INVALID, "hidden row %d is not one of %d tokens, or out of order",
                           b->hidden_rows[i], b->n_tokens);
    if (d->m->hp.encoder && (rc = check_encoder(d, b, e)) != OK) return rc;
    if (d->states && (rc = check_runs(d, b, e)) != OK) return rc;
    return b->n_picks ? check_picks(d, b, e) : OK;
}

static const int32_t *stage(struct pass *d, size_t *used, const int32_t *src, size_t n)
{
    const int32_t *there = d->s.ints + *used;
    if (n) memcpy(d->s.ints_host + *used, src, n * sizeof *src);
    *used += n;
    return there;
}

static const void *stage_structs(struct pass *d, size_t *used, const void *src, int n, size_t size)
{
    *used = (*used + STAGE_ALIGN - 1) / STAGE_ALIGN * STAGE_ALIGN;
    return stage(d, used, src, (size_t)n * size / sizeof(int32_t));
}

/* What is put is rounded up, so that steps with a few more adjustments are the same calls. */
static void stage_adjust(struct pass *d, size_t *used, const struct batch *b)
{
    int n = LEAST_ADJUST;

    d->adjust = stage_structs(d, used, b->adjust, b->n_adjust, sizeof *b->adjust);
    while (n < b->n_adjust) n *= 2;
    if (n > d->s.max_adjust) n = d->s.max_adjust;
    if (b->n_adjust) *used += (size_t)(n - b->n_adjust) * (sizeof *b->adjust / sizeof(int32_t));
}

static void put_batch(struct pass *d, const struct decoder *all, const struct batch *b)
{
    size_t used = 0, n = (size_t)b->n_tokens;
    bool picks = b->n_picks && d->s.last;
    d->ids = stage(d, &used, b->ids, n);
    d->kv.pos = stage(d, &used, b->pos, n);
    d->kv.seq = stage(d, &used, b->seq, n);
    d->out_rows = stage(d, &used, b->out_rows, (size_t)b->n_out);
    if (picks) d->picks = stage_structs(d, &used, b->picks, b->n_picks, sizeof *b->picks);
    d->kv.table = stage(d, &used, b->table, (size_t)b->n_seqs * (size_t)b->table_stride);
    if (d->m->token_types.rows) { /* all of the first type */
        d->types = d->s.ints + used;
        memset(d->s.ints_host + used, 0, n * sizeof(int32_t));
        used += n;
    }
    if (d->m->hp.encoder) d->kv.seq_end = stage(d, &used, d->seq_end, (size_t)b->n_seqs);
    if (picks) stage_adjust(d, &used, b);
    if (all->states) {
        d->st.runs = stage_structs(d, &used, all->runs, all->n_runs, sizeof *all->runs);
        d->st.n_runs = all->n_runs;
        d->st.n_tokens = b->n_tokens;
    }
    d->kv.table_stride = b->table_stride;
    d->kv.n_tokens = b->n_tokens;
    d->kv.n_seqs = b->n_seqs;
    d->kv.max_pos = 0;
    for (int t = 0; t < b->n_tokens; t++)
        if (b->pos[t] > d->kv.max_pos) d->kv.max_pos = b->pos[t];
    d->be->put(d->be, d->s.ints, d->s.ints_host, used * sizeof(int32_t));
}

/* ---- rotary tables ---- */

/* Frequencies that depend on how long a sequence is: one vector for each that is beyond the model's
 * own length, and tables made run by run of tokens that share one. */
static void varying_table(struct pass *d, const struct batch *b, int kind)
{
    const struct rope_hp *r = &d->m->hp.rope[kind];
    struct scratch *s = &d->s;
    size_t half = (size_t)r->n_rot / 2, base = (size_t)kind * (size_t)s->opt.max_seqs * half;
    struct tensor *run = s->runs + (size_t)kind * (size_t)s->opt.max_tokens;

    for (int i = 0; i < b->n_seqs; i++)
        if (rotary_is_long(r, d->seq_end[i]))
            rotary_freq(r, d->seq_end[i], s->freq_host + base + (size_t)i * half);
    d->be->put(d->be, s->freq + base, s->freq_host + base,
               (size_t)b->n_seqs * half * sizeof(float));

    for (int t = 0, end; t < b->n_tokens; t = end, run++) {
        int seq = b->seq[t];
        bool is_long = rotary_is_long(r, d->seq_end[seq]);
        const float *freq =
            is_long ? s->freq + base + (size_t)seq * half : d->part->rope_freq[kind];
        for (end = t + 1; end < b->n_tokens; end++) {
            bool other = rotary_is_long(r, d->seq_end[b->seq[end]]);
            if (other != is_long || (is_long && b->seq[end] != seq)) break;
        }
        *run = tensor_f32(s->table[kind] + (size_t)t * (size_t)r->n_rot, end - t, r->n_rot);
        d->be->rope_table(d->be, run, d->kv.pos + t, freq, r->n_rot,
                          (float)rotary_factor(r, d->seq_end[seq]));
    }
}

static void rope_tables(struct pass *d, const struct batch *b)
{
    for (int i = 0; i < d->m->hp.n_rope; i++) {
        const struct rope_hp *r = &d->m->hp.rope[i];
        if (rotary_varies(r)) varying_table(d, b, i);
        else
            d->be->rope_table(d->be, &d->s.table_t[i], d->kv.pos, d->part->rope_freq[i], r->n_rot,
                              (float)r->attn_factor);
    }
}

/* ---- layers ---- */

static void one_layer(struct pass *d, int l, const struct batch *b, bool gathered)
{
    struct backend *be = d->be;
    struct layer_step *p = &d->s.steps[l];
    int n_out = b->n_out + b->n_hidden;
    bool last = l == d->m->hp.n_layers - 1;

    blocks_attention(d, l, !last || n_out > 0);
    if (last && n_out == 0) return; /* nobody reads on: the KV is all that was wanted */
    blocks_attend(d, l);
    if (last && gathered) {
        be->gather(be, &p->tx, &p->x, d->out_rows);
        be->gather(be, &p->ta, &p->a, d->out_rows);
    }
    blocks_rest(d, l);
}

bool decoder_can_pick(const struct decoder *d)
{
    return !d->m->onnx && last_pass(d)->s.picked != NULL;
}
int decoder_max_adjust(const struct decoder *d)
{
    return d->m->onnx ? 0 : last_pass(d)->s.max_adjust;
}

/* Rows that nobody picks from, neighbours in one go. */
static void get_logits(struct pass *d, const struct batch *b)
{
    size_t row = (size_t)d->s.logits_t.cols;

    for (int i = 0, pick = 0; i < b->n_out;) {
        int end = pick < b->n_picks ? b->picks[pick].row : b->n_out;
        if (i < end)
            d->be->get(d->be, d->s.logits_host + (size_t)i * row, d->s.logits + (size_t)i * row,
                       (size_t)(end - i) * row * sizeof(float));
        i = end + 1;
        pick++;
    }
}

static void pick_tokens(struct pass *d, const struct batch *b)
{
    struct scratch *s = &d->s;

    s->pick_t = tensor_cols(s->logits_t, 0, b->n_pick_from);
    d->be->sample(d->be, s->picked, &s->pick_t, d->picks, b->n_picks, d->adjust);
    d->be->get(d->be, b->picked, s->picked, (size_t)b->n_picks * sizeof *b->picked);
}

/* Hidden states that are wanted, neighbours in one go. */
static void get_hidden(struct pass *d, const struct batch *b, const struct tensor *x)
{
    for (int i = 0, n; i < b->n_hidden; i += n) {
        for (n = 1; i + n < b->n_hidden && b->hidden_rows[i + n] == b->hidden_rows[i] + n; n++) {}
        d->be->get(d->be, b->hidden + (size_t)i * (size_t)x->cols, tensor_row(x, b->hidden_rows[i]),
                   (size_t)n * (size_t)x->cols * sizeof *b->hidden);
    }
}

static void head(struct pass *d, const struct batch *b)
{
    const struct tensor *x = blocks_last(d);

    if (b->n_hidden) {
        get_hidden(d, b, x);
        if (!b->n_out) return;
        d->be->gather(d->be, &d->s.chosen_t, x, d->out_rows);
        x = &d->s.chosen_t;
    }
    blocks_head(d, x);
    if (b->n_picks) pick_tokens(d, b);
    if (d->s.logits_host) get_logits(d, b);
}

static bool is_all(const struct batch *b)
{
    if (b->n_out != b->n_tokens) return false;
    for (int i = 0; i < b->n_out; i++)
        if (b->out_rows[i] != i) return false;
    return true;
}

/* ---- a batch through all passes ---- */

static bool is_unwanted(const struct decoder *d) { return d->b.stop && d->b.stop(d->b.stop_arg); }

static int stopped(struct err *e)
{
    return err_set(e, E_CANCELLED, "the pass was stopped: nobody wants its result");
}

/* Bytes of the rows that go from one device to the next, through the host. */
static size_t cross_bytes(const struct decoder *d)
{
    return (size_t)d->b.n_tokens * (size_t)d->m->hp.n_embd * sizeof(float);
}

static void begin_pass(struct decoder *d)
{
    struct pass *p = &d->passes[d->at];

    d->begun = true;
    d->asked = false;
    d->layer = p->part->first;
    scratch_plan(&p->s, d->m, d->b.n_tokens, d->b.n_hidden ? d->b.n_tokens : d->b.n_out, d->b.n_out,
                 d->gathered);
    put_batch(p, d, &d->b);
    if (d->at == 0) blocks_embed(p);
    else p->be->put(p->be, p->s.x, d->cross[d->at].x, cross_bytes(d));
    rope_tables(p, &d->b);
}

/* Small steps of a device are asked for whole; a large one in pieces, each begun at once. */
static int layers_of_piece(const struct decoder *d, const struct backend *be)
{
    if (!be->flush) return 1;
    if (d->b.n_tokens <= be->whole_tokens) return d->m->hp.n_layers;
    return d->b.n_tokens < PIECE_TOKENS ? PIECE_TOKENS / d->b.n_tokens : 1;
}

/* The next layers; behind a pass's last one what it is for. */
static void ask_for_piece(struct decoder *d)
{
    struct pass *p = &d->passes[d->at];

    for (int n = layers_of_piece(d, p->be); n > 0 && d->layer < p->part->end; n--)
        one_layer(p, d->layer++, &d->b, d->gathered);
    d->asked = d->layer == p->part->end;
    if (!d->asked && p->be->flush) p->be->flush(p->be, false);
    if (!d->asked) return;
    if (p != last_pass(d)) p->be->get(p->be, d->cross[d->at + 1].x, p->s.x, cross_bytes(d));
    else if (d->b.n_out + d->b.n_hidden) head(p, &d->b);
}

int decoder_start(struct decoder *d, const struct batch *b, struct err *e)
{
    struct backend *be = d->passes[0].be;
    int rc = check(d, b, e);

    if (rc != OK) return rc;
    d->b = *b;
    if (d->m->onnx) return OK;
    d->gathered = !b->n_hidden && !is_all(b); /* hidden states: all tokens go on to the end */
    d->at = 0;
    d->begun = d->asked = false;
    if (!be->flush) return OK;
    if (is_unwanted(d)) return stopped(e);
    begin_pass(d);
    for (int i = 0; i < AHEAD && !d->asked; i++) ask_for_piece(d);
    if (d->asked) be->flush(be, true);
    return OK;
}

/* All that is left of the pass. */
static int finish_pass(struct decoder *d, struct err *e)
{
    struct backend *be = d->passes[d->at].be;
    int rc;

    if (!d->begun) begin_pass(d);
    while (!d->asked) {
        if (be->flush) be->throttle(be, AHEAD - 1);
        if (is_unwanted(d)) {
            rc = be->sync(be, e);
            return rc != OK ? rc : stopped(e);
        }
        ask_for_piece(d);
    }
    return be->sync(be, e);
}

int decoder_wait(struct decoder *d, const float **logits, struct err *e)
{
    const struct scratch *s;
    int rc = OK;

    *logits = NULL;
    if (d->m->onnx) return onnxpass_run(d->m->onnx, &d->b, e);
    s = &last_pass(d)->s;
    for (; d->at < d->n_passes && rc == OK; d->at++, d->begun = false) rc = finish_pass(d, e);
    *logits = s->logits_host ? s->logits_host : s->logits;
    return rc;
}

int decoder_run(struct decoder *d, const struct batch *b, const float **logits, struct err *e)
{
    int rc = decoder_start(d, b, e);
    return rc != OK ? rc : decoder_wait(d, logits, e);
}
