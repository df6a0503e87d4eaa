/* cu_attend.cu - host side of attention: checks arguments, divides the work, chooses kernels.
 *
 * Few tokens, or one of each sequence: all tokens are rows. Otherwise attend_plan divides the batch
 * into tiles and rows, and both kinds of kernels are launched; blocks without work end at once. */
#include "kernel/cuda/attend_row_rope.cuh"

#define MAX_DIM 1024
#define MAX_SPLITS 64
#define PART_SLOTS 2048 /* partial results of rows in scratch memory */
#define CUT_THREADS 1024
#define ROW_ALONE 16 /* pages that are attended faster than partial results are combined */
/* Attention that takes less than a launch in F32: dimensions of all heads, tokens times keys. */
#define EXACT_DIMS 256
#define EXACT_PAIRS (1 << 16)

/* ---- keys and values ---- */

bool fill_kv_rows(struct cuda *c, struct kv_rows *r, enum dtype type, void *base,
                  size_t block_bytes, int heads, int dim)
{
    bool known = type == DT_F32 || type == DT_F16 || type == DT_BF16 || type == DT_Q8_0 ||
                 type == DT_F8_E4M3;
    uint64_t row;

    if (!known || !dtype_row_bytes(type, (uint64_t)dim, &row)) {
        cu_fail(c, E_UNSUPPORTED, "KV type %s with heads of %d dimensions is not supported",
                dtype_name(type), dim);
        return false;
    }
    *r = { (char *)base, block_bytes, (int)row * KV_BLOCK, (int)row, dim };
    if (base && (size_t)r->head_bytes * (size_t)heads <= block_bytes) return true;
    cu_fail(c, E_INVALID, "a KV block has %zu bytes, but %zu are needed", block_bytes,
            (size_t)r->head_bytes * (size_t)heads);
    return false;
}

static bool is_aligned16(const struct kv_rows *r)
{
    return ((uintptr_t)r->base | r->block_bytes) % 16 == 0 && r->dim % 8 == 0;
}

/* v_in_k: values have the address and the row size of the keys. */
bool fill_kv_dev(struct cuda *c, struct kv_dev *out, const struct kvview *kv, int layer)
{
    const struct kvlayer *l = &kv->layers[layer];

    *out = {};
    out->table = kv->table;
    out->seq = kv->seq;
    out->pos = kv->pos;
    out->table_stride = kv->table_stride;
    out->type = kv->type;
    out->n_kv_heads = l->n_kv_heads;
    out->v_in_k = l->v_in_k;
    if (!fill_kv_rows(c, &out->k, kv->type, l->k, l->k_block_bytes, l->n_kv_heads, l->head_dim) ||
        !fill_kv_rows(c, &out->v, kv->type, l->v_in_k ? l->k : l->v,
                      l->v_in_k ? l->k_block_bytes : l->v_block_bytes, l->n_kv_heads,
                      l->head_dim_v))
        return false;
    if (l->v_in_k) {
        out->v.head_bytes = out->k.head_bytes;
        out->v.row_bytes = out->k.row_bytes;
    }
    out->aligned = is_aligned16(&out->k) && is_aligned16(&out->v);
    if (kv->type == DT_Q8_0 && !out->aligned) {
        cu_fail(c, E_INVALID, "KV blocks of type Q8_0 must be aligned to 16 bytes");
        return false;
    }
    return true;
}

/* ---- which tokens are tiles ---- */

struct plan_args {
    const int32_t *seq, *pos;
    int n_tokens, tile_tokens, max_tiles;
    int least; /* consecutive tokens that are worth a tile */
    int2 *tile;
    int *row, *n_tiles, *n_rows;
    unsigned *next_tile;
};

/* The first sequence start at or after token `from`, or n. Bit i of starts: token i does not
 * continue the sequence of the token before it. */
static __device__ int next_start(const uint32_t *starts, int from, int n)
{
    int word = from >> 5, words = (n + 31) >> 5;
    uint32_t w = starts[word] & ~0u << (from & 31);

    while (!w && ++word < words) w = starts[word];
    return w ? min(word * 32 + __ffs(w) - 1, n) : n;
}

/* Divides the batch into tiles and rows. One block. The last tiles of a sequence have the most keys
 * and come first. */
static __global__ void __launch_bounds__(CUT_THREADS) attend_plan(const struct plan_args p)
{
    __shared__ uint32_t starts[PLAN_TOKENS / 32];
    __shared__ int n_tiles, n_rows;

    cu_release_next();
    /* 1. A bit for every token that starts a run of consecutive positions. */
    if (threadIdx.x == 0) n_tiles = n_rows = 0;
    for (int i = threadIdx.x; i < (p.n_tokens + 31) / 32 * 32; i += CUT_THREADS) {
        bool start =
            i < p.n_tokens && (i == 0 || p.seq[i] != p.seq[i - 1] || p.pos[i] != p.pos[i - 1] + 1);
        uint32_t w = __ballot_sync(~0u, start);
        if (i % 32 == 0) starts[i / 32] = w;
    }
    /* Positions were uploaded by a copy and can be read before this, see cu_attend. */
    cu_wait_previous();
    __syncthreads();
    /* 2. The thread of a run's first token writes its tiles, or its tokens as rows. */
    for (int i = threadIdx.x; i < p.n_tokens; i += CUT_THREADS) {
        if (!(starts[i / 32] >> i % 32 & 1)) continue;
        int end = i + 1 < p.n_tokens ? next_start(starts, i + 1, p.n_tokens) : p.n_tokens,
            n = end - i;
        int tiles = (n + p.tile_tokens - 1) / p.tile_tokens, at = -1;
        if (n >= p.least) {
            at = atomicAdd(&n_tiles, tiles);
            if (at + tiles > p.max_tiles) {
                atomicSub(&n_tiles, tiles);
                at = -1;
            }
        }
        if (at >= 0) {
            for (int j = 0; j < tiles; j++) {
                int first = i + j * p.tile_tokens;
                p.tile[at + tiles - 1 - j] = make_int2(first, min(p.tile_tokens, end - first));
            }
        } else {
            int r = atomicAdd(&n_rows, n);
            for (int j = 0; j < n; j++) p.row[r + j] = i + j;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        *p.n_tiles = n_tiles;
        *p.n_rows = n_rows;
        *p.next_tile = 0;
    }
}

/* ---- scratch memory: counters, the plan, partial results ---- */

struct attend_scratch {
    size_t done, counts, tiles, rows, parts, bytes;
};

static struct attend_scratch attend_scratch_layout(int max_tokens)
{
    struct attend_scratch s;

    s.done = 0;
    s.counts = PART_SLOTS * sizeof(unsigned);
    s.tiles = s.counts + 16;
    s.rows = s.tiles + (size_t)max_tokens * sizeof(int2);
    s.parts = (s.rows + (size_t)max_tokens * sizeof(int) + 255) / 256 * 256;
    s.bytes = s.parts + (size_t)PART_SLOTS * ROW_PART * sizeof(float);
    return s;
}

/* Must be zero when it is reserved. The counters of partial results return to zero by
 * themselves. */
size_t cu_attend_bytes(const struct cuda *c, const struct backend_limits *lim)
{
    (void)c;
    return attend_scratch_layout(lim->max_tokens).bytes;
}

/* ---- the operation ---- */

/* The output of the last launch of rows. thread_local: one thread drives a backend. */
static thread_local const float *last_out;

bool attend_wrote(const float *x) { return x == last_out; }

/* The kernel for the KV type (inst/attend_row_*.cu). */
static void launch_rows(struct cuda *c, const struct attend_dev *a, dim3 grid, int warps)
{
    bool aligned = a->kv.aligned && !a->seq_end; /* the fastest kernels are causal only */

    if (a->kv.type == DT_F16 && aligned) attend_rows_f16(c, a, grid, warps);
    else if (a->kv.type == DT_BF16 && aligned) attend_rows_bf16(c, a, grid, warps);
    else if (a->kv.type == DT_F8_E4M3 && aligned) attend_rows_f8(c, a, grid, warps);
    else if (a->kv.type == DT_Q8_0) attend_rows_q8(c, a, grid, warps);
    else attend_rows_any(c, a, grid, warps);
}

/* Chooses into how many splits the keys of each row are divided, and launches. Few rows: one block
 * for each SM, with room beside it for a block of the next matrix product. Many rows: small blocks,
 * several on each SM, so that one starts while another ends. */
static void split_rows(struct cuda *c, struct attend_dev *a, int rows, int likely_rows, int max_pos)
{
    int d = a->dk > a->dv ? a->dk : a->dv, keys = max_pos + 1, splits;

    a->head_tiles = (a->group + ROW_HEADS - 1) / ROW_HEADS;
    a->n_slices = d > 128 ? (a->dv + ROW_SLICE - 1) / ROW_SLICE : 1;
    int seen = a->seq_end ? 2 * a->window : a->window;
    if (a->window > 0 && keys > seen) keys = seen + KV_BLOCK;
    int y = a->kv.n_kv_heads * a->head_tiles * a->n_slices, units = likely_rows * y;
    int pages = (keys + KV_BLOCK - 1) / KV_BLOCK, slots = 4 * c->n_sm, most;
    int type = a->kv.type;
    bool plain = a->kv.aligned && !a->seq_end && d <= 128 &&
                 (type == DT_F16 || type == DT_BF16 || type == DT_F8_E4M3);
    bool many = c->cc >= 90 && plain && units <= c->n_sm && pages > ROW_LONG && !a->row_list;
    int warps = units > c->n_sm || many ? 4 : 8;
    a->n_stages = many ? ROW_STAGES : 0;
    if (units <= c->n_sm) {
        splits = c->n_sm / units;
        most = pages <= ROW_ALONE ? 1 : (pages + warps - 1) / warps; /* a page for each warp */
    } else {
        splits = units < slots ? slots / units : pages / 64;
        most = pages / 16; /* four pages for each warp */
    }
    if (splits > most) splits = most;
    if (splits > PART_SLOTS / (rows * y)) splits = PART_SLOTS / (rows * y);
    if (splits > MAX_SPLITS) splits = MAX_SPLITS;
    a->n_splits = splits > 1 ? splits : 1;
    last_out = a->out;
    launch_rows(c, a, dim3(a->n_splits, y, rows), warps);
}

/* There are enough heads that one token fills a tile of latents, and enough tokens that keys need
 * not be split. */
static bool fills_latent_tiles(const struct cuda *c, const struct attend_dev *a)
{
    return a->kv.v_in_k && a->group >= LATENT_ROWS &&
           3 * a->n_tokens * (a->group / LATENT_ROWS) >= c->n_sm;
}

/* Tiles of 128 rows (64 for wide heads and latents), a row being one query head of one token. The
 * tokens of sequences too short for a tile are rows. */
static void launch_tiles_and_rows(struct cuda *c, struct attend_dev *a, const struct kvview *kv)
{
    char *s = (char *)c->scratch[CU_ATTEND];
    struct attend_scratch at = attend_scratch_layout(c->lim.max_tokens);
    bool latent = a->kv.v_in_k;
    int d = a->dk > a->dv ? a->dk : a->dv, rows = latent ? LATENT_ROWS : d <= 128 ? 128 : 64;
    int n_tokens = kv->n_tokens,
        few = n_tokens < kv->n_seqs * (TILE_LEAST - 1) ? n_tokens : kv->n_seqs * (TILE_LEAST - 1);
    bool wg = c->cc == 90 && d <= 128 && !a->seq_end && !latent;
    bool alone = wg ? kv->n_seqs == 1 : latent && a->group >= rows;
    struct plan_args p = {};

    a->tile_heads = a->group < rows ? a->group : rows;
    p.seq = kv->seq;
    p.pos = kv->pos;
    p.n_tokens = n_tokens;
    p.tile_tokens = rows / a->tile_heads;
    p.least = alone ? 1 : TILE_LEAST;
    p.max_tiles = n_tokens;
    if (!wg && (n_tokens + p.tile_tokens - 1) / p.tile_tokens + kv->n_seqs < n_tokens)
        /* the size of the grid */
        p.max_tiles = (n_tokens + p.tile_tokens - 1) / p.tile_tokens + kv->n_seqs;
    p.tile = (int2 *)(s + at.tiles);
    p.row = (int *)(s + at.rows);
    p.n_tiles = (int *)(s + at.counts);
    p.n_rows = p.n_tiles + 1;
    p.next_tile = (unsigned *)(p.n_tiles + 2);
    cu_launch(c, "attend cut", attend_plan, dim3(1), dim3(CUT_THREADS), 0, p);
    a->tile_list = p.tile;
    a->n_tiles = p.n_tiles;
    a->next_tile = p.next_tile;
    a->row_list = p.row;
    a->n_rows = p.n_rows;
    int parts = (a->group + a->tile_heads - 1) / a->tile_heads;
    dim3 grid(a->kv.n_kv_heads * parts, p.max_tiles);
    if (wg) attend_wgs(c, a);
    else if (latent) attend_latents(c, a, grid);
    else if (a->kv.type == DT_F16 && a->kv.aligned) attend_tiles_f16(c, a, grid);
    else attend_tiles_any(c, a, grid);
    if (!alone) split_rows(c, a, few, kv->n_seqs, kv->max_pos);
}

/* Head sizes that the kernels support, and the same as those of the KV cache. */
static bool check_attend(struct cuda *c, const struct attend_opt *o, const struct kvlayer *l)
{
    if (o->head_dim > MAX_DIM || o->head_dim_v > MAX_DIM) {
        cu_fail(c, E_UNSUPPORTED,
                "attention heads of %d and %d dimensions; at most %d are supported", o->head_dim,
                o->head_dim_v, MAX_DIM);
        return false;
    }
    if (o->n_kv_heads < 1 || o->n_heads % o->n_kv_heads || l->n_kv_heads != o->n_kv_heads ||
        l->head_dim != o->head_dim || l->head_dim_v != o->head_dim_v) {
        cu_fail(c, E_INVALID,
                "attention of %d heads over %d KV heads of %d and %d dimensions, but the KV cache "
                "has %d of %d and %d",
                o->n_heads, o->n_kv_heads, o->head_dim, o->head_dim_v, l->n_kv_heads, l->head_dim,
                l->head_dim_v);
        return false;
    }
    return true;
}

/* Queries and weights lose digits in F16, and models whose scores are not scaled down (gemma) feel it.
 * Where F32 costs nothing, it is used. */
static bool is_tiny(const struct cuda *c, const struct attend_opt *o, const struct kvview *kv)
{
    int dim = o->head_dim > o->head_dim_v ? o->head_dim : o->head_dim_v;

    return c->exact && o->n_heads * dim <= EXACT_DIMS &&
           (long long)kv->n_tokens * (kv->max_pos + 1) <= EXACT_PAIRS;
}

/* Makes the rotary embedding of one token part of its attention kernel. false: not possible for
 * these heads or types. */
static bool try_fused_rope(struct cuda *c, struct attend_dev *a, const struct cu_rope_kv *rope)
{
    enum dtype t = rope->kv->type;

    if (rope->kv->n_tokens != 1 || a->seq_end || (t != DT_F16 && t != DT_BF16 && t != DT_F8_E4M3))
        return false;
    if (!fill_rope_dev(c, &a->rope, rope)) return false;
    if (a->q_aligned && row_can_rotate(&a->rope)) {
        note_kv_written(&a->rope, 1);
        return true;
    }
    a->rope = {};
    return false;
}

void cu_attend(struct cuda *c, const struct tensor *out, const struct tensor *q,
               const struct kvview *kv, int layer, const struct attend_opt *opt,
               const struct cu_rope_kv *rope)
{
    char *s = (char *)c->scratch[CU_ATTEND];
    struct attend_dev a = {};

    if (kv->n_tokens == 0 || !check_attend(c, opt, &kv->layers[layer]) ||
        !fill_kv_dev(c, &a.kv, kv, layer))
        return;
    a.q = (const float *)q->data;
    a.out = (float *)out->data;
    a.q_stride = q->stride;
    a.out_stride = out->stride;
    a.n_tokens = kv->n_tokens;
    a.group = opt->n_heads / opt->n_kv_heads;
    a.dk = opt->head_dim;
    a.dv = opt->head_dim_v;
    a.softcap = opt->softcap;
    a.scale = opt->softcap > 0.f ? opt->scale / opt->softcap : opt->scale * LOG2E;
    a.cap_log2 = opt->softcap * LOG2E;
    a.window = opt->bidirectional && opt->window > 0 ? opt->window / 2 + 1 : opt->window;
    if (opt->chunk > 0) a.window = a.chunk = opt->chunk;
    a.seq_end = opt->bidirectional ? kv->seq_end : NULL;
    a.one_seq = kv->n_seqs == 1;
    a.sinks = opt->sinks;
    a.slopes = opt->slopes;
    a.q_aligned = (uintptr_t)q->data % 16 == 0 && q->stride % 4 == 0 && a.dk % 8 == 0;
    a.done = (unsigned *)s;
    a.part = (float *)(s + attend_scratch_layout(c->lim.max_tokens).parts);
    if (opt->keys || is_tiny(c, opt, kv)) {
        if (rope) cu_rope_kv(c, rope);
        attend_picked(c, &a, opt->n_heads, opt->keys);
        return;
    }
    bool wide = a.kv.v_in_k ? !attend_latent_can(c, &a) : a.dk > 256 || a.dv > 256;
    bool rows = kv->n_tokens <= TILE_LEAST || kv->n_tokens == kv->n_seqs;
    if (wide || (rows && !fills_latent_tiles(c, &a)) || kv->n_tokens > PLAN_TOKENS) {
        /* Positions and tables are uploaded by copies, which do not overlap with kernels, and keys
         * of earlier steps do not change. Both may be read while the kernel before still writes
         * this step's keys and values. */
        if (rope && !try_fused_rope(c, &a, rope)) cu_rope_kv(c, rope);
        a.early = !opt->bidirectional && kv_written_by_batch(kv, layer);
        split_rows(c, &a, kv->n_tokens, kv->n_tokens, kv->max_pos);
    } else {
        if (rope) cu_rope_kv(c, rope);
        launch_tiles_and_rows(c, &a, kv);
    }
}

void cu_attend_compressed(struct cuda *c, const struct tensor *out, const struct tensor *q,
                          const struct kvview *kv, int layer, const struct attend_opt *opt,
                          int rate)
{
    struct attend_dev a = {};

    if (kv->n_tokens == 0 || !fill_kv_dev(c, &a.kv, kv, layer)) return;
    a.q = (const float *)q->data;
    a.out = (float *)out->data;
    a.q_stride = q->stride;
    a.out_stride = out->stride;
    a.n_tokens = kv->n_tokens;
    a.group = opt->n_heads;
    a.dk = a.dv = opt->head_dim;
    a.scale = opt->scale * LOG2E;
    a.window = opt->window;
    a.sinks = opt->sinks;
    attend_entries(c, &a, opt->n_heads, rate, opt->keys);
}
