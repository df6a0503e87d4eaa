/* cu_attend.cu - attention: what is asked checked, the work cut, kernels chosen. */
#include "kernel/cuda/attend_row_turn.cuh"

#define MAX_DIM 1024
#define MAX_SPLITS 64
#define PART_SLOTS 2048 /* parts of rows in scratch */
#define CUT_THREADS 1024
#define ROW_ALONE 16 /* pages that are sooner done than parts of them are put together */

/* ---- keys and values ---- */

static bool rows_of(struct cuda *c, struct kv_rows *r, enum dtype type, void *base,
                    size_t block_bytes, int heads, int dim)
{
    bool known = type == DT_F32 || type == DT_F16 || type == DT_BF16 || type == DT_Q8_0 ||
                 type == DT_F8_E4M3;
    uint64_t row;

    if (!known || !dtype_row_bytes(type, (uint64_t)dim, &row)) {
        cu_fail(c, E_UNSUPPORTED, "keys and values of type %s with heads of %d numbers",
                dtype_name(type), dim);
        return false;
    }
    *r = { (char *)base, block_bytes, (int)row * KV_BLOCK, (int)row, dim };
    if (base && (size_t)r->head_bytes * (size_t)heads <= block_bytes) return true;
    cu_fail(c, E_INVALID, "a block of keys or values has %zu bytes, %zu are needed", block_bytes,
            (size_t)r->head_bytes * (size_t)heads);
    return false;
}

static bool on_16(const struct kv_rows *r)
{
    return ((uintptr_t)r->base | r->block_bytes) % 16 == 0 && r->dim % 8 == 0;
}

bool kv_dev_of(struct cuda *c, struct kv_dev *out, const struct kvview *kv, int layer)
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
    if (!rows_of(c, &out->k, kv->type, l->k, l->k_block_bytes, l->n_kv_heads, l->head_dim) ||
        !rows_of(c, &out->v, kv->type, l->v_in_k ? l->k : l->v,
                 l->v_in_k ? l->k_block_bytes : l->v_block_bytes, l->n_kv_heads, l->head_dim_v))
        return false;
    if (l->v_in_k) {
        out->v.head_bytes = out->k.head_bytes;
        out->v.row_bytes = out->k.row_bytes;
    }
    out->whole = on_16(&out->k) && on_16(&out->v);
    if (kv->type == DT_Q8_0 && !out->whole) {
        cu_fail(c, E_INVALID, "blocks of Q8_0 keys and values must lie on 16 bytes");
        return false;
    }
    return true;
}

/* ---- which tokens are tiles ---- */

struct cut {
    const int32_t *seq, *pos;
    int n_tokens, tile_tokens, max_tiles,
        least; /* least: consecutive tokens that are worth a tile */
    int2 *tile;
    int *row, *n_tiles, *n_rows;
    unsigned *next_tile;
};

/* Bit i of starts: token i does not follow the one before it in the same sequence. */
static __device__ int next_start(const uint32_t *starts, int from, int n)
{
    int word = from >> 5, words = (n + 31) >> 5;
    uint32_t w = starts[word] & ~0u << (from & 31);

    while (!w && ++word < words) w = starts[word];
    return w ? min(word * 32 + __ffs(w) - 1, n) : n;
}

/* One block. The longest tiles, a sequence's last, come first. */
static __global__ void __launch_bounds__(CUT_THREADS) attend_cut(const struct cut p)
{
    __shared__ uint32_t starts[PLAN_TOKENS / 32];
    __shared__ int n_tiles, n_rows;

    cu_next();
    if (threadIdx.x == 0) n_tiles = n_rows = 0;
    for (int i = threadIdx.x; i < (p.n_tokens + 31) / 32 * 32; i += CUT_THREADS) {
        bool start =
            i < p.n_tokens && (i == 0 || p.seq[i] != p.seq[i - 1] || p.pos[i] != p.pos[i - 1] + 1);
        uint32_t w = __ballot_sync(~0u, start);
        if (i % 32 == 0) starts[i / 32] = w;
    }
    cu_wait(); /* what came by a copy could be read before, as in cu_attend */
    __syncthreads();
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

/* ---- scratch: counters, the plan, parts ---- */

struct layout_of_scratch {
    size_t done, counts, tiles, rows, parts, bytes;
};

static struct layout_of_scratch scratch_of(int max_tokens)
{
    struct layout_of_scratch s;

    s.done = 0;
    s.counts = PART_SLOTS * sizeof(unsigned);
    s.tiles = s.counts + 16;
    s.rows = s.tiles + (size_t)max_tokens * sizeof(int2);
    s.parts = (s.rows + (size_t)max_tokens * sizeof(int) + 255) / 256 * 256;
    s.bytes = s.parts + (size_t)PART_SLOTS * ROW_PART * sizeof(float);
    return s;
}

/* To be zeros when it is reserved: the counters of parts return to that by themselves. */
size_t cu_attend_bytes(const struct cuda *c, const struct backend_limits *lim)
{
    (void)c;
    return scratch_of(lim->max_tokens).bytes;
}

/* ---- the call ---- */

/* One thread drives a backend, and device pointers are its own. */
static thread_local const float *last_out;

bool attend_made(const float *x) { return x == last_out; }

static void rows_launch(struct cuda *c, const struct attend_dev *a, dim3 grid, int warps)
{
    bool whole = a->kv.whole && !a->seq_end; /* those that are the fastest look back only */

    if (a->kv.type == DT_F16 && whole) attend_rows_f16(c, a, grid, warps);
    else if (a->kv.type == DT_BF16 && whole) attend_rows_bf16(c, a, grid, warps);
    else if (a->kv.type == DT_F8_E4M3 && whole) attend_rows_f8(c, a, grid, warps);
    else if (a->kv.type == DT_Q8_0) attend_rows_q8(c, a, grid, warps);
    else attend_rows_any(c, a, grid, warps);
}

/* Few rows: one block on every multiprocessor, its keys split, and room beside it for the product
 * that comes next. Many: small blocks, several on each, so that one begins while another ends. */
static void attend_rows(struct cuda *c, struct attend_dev *a, int rows, int likely_rows,
                        int max_pos)
{
    int d = a->dk > a->dv ? a->dk : a->dv, keys = max_pos + 1, splits;

    a->head_tiles = (a->group + ROW_HEADS - 1) / ROW_HEADS;
    a->n_slices = d > 128 ? (a->dv + ROW_SLICE - 1) / ROW_SLICE : 1;
    int seen = a->seq_end ? 2 * a->window : a->window;
    if (a->window > 0 && keys > seen) keys = seen + KV_BLOCK;
    int y = a->kv.n_kv_heads * a->head_tiles * a->n_slices, units = likely_rows * y;
    int pages = (keys + KV_BLOCK - 1) / KV_BLOCK, slots = 4 * c->n_sm, most;
    int type = a->kv.type;
    bool plain = a->kv.whole && !a->seq_end && d <= 128 &&
                 (type == DT_F16 || type == DT_BF16 || type == DT_F8_E4M3);
    bool many = c->cc >= 90 && plain && units <= c->n_sm && pages > ROW_LONG && !a->row_list;
    int warps = units > c->n_sm || many ? 4 : 8;
    a->n_stages = many ? ROW_STAGES : 0;
    if (units <= c->n_sm) {
        splits = c->n_sm / units;
        most = pages <= ROW_ALONE ? 1 : (pages + warps - 1) / warps; /* a page for each warp */
    } else {
        splits = units < slots ? slots / units : pages / 64;
        most = pages / 16; /* four for each */
    }
    if (splits > most) splits = most;
    if (splits > PART_SLOTS / (rows * y)) splits = PART_SLOTS / (rows * y);
    if (splits > MAX_SPLITS) splits = MAX_SPLITS;
    a->n_splits = splits > 1 ? splits : 1;
    last_out = a->out;
    rows_launch(c, a, dim3(a->n_splits, y, rows), warps);
}

/* So many heads that one token fills tiles of latents, and so many tokens that their keys need not
 * be split. */
static bool is_tiles(const struct cuda *c, const struct attend_dev *a)
{
    return a->kv.v_in_k && a->group >= LATENT_ROWS &&
           3 * a->n_tokens * (a->group / LATENT_ROWS) >= c->n_sm;
}

static void attend_mixed(struct cuda *c, struct attend_dev *a, const struct kvview *kv)
{
    char *s = (char *)c->scratch[CU_ATTEND];
    struct layout_of_scratch at = scratch_of(c->lim.max_tokens);
    bool latent = a->kv.v_in_k;
    int d = a->dk > a->dv ? a->dk : a->dv, rows = latent ? LATENT_ROWS : d <= 128 ? 128 : 64;
    int n_tokens = kv->n_tokens,
        few = n_tokens < kv->n_seqs * (TILE_LEAST - 1) ? n_tokens : kv->n_seqs * (TILE_LEAST - 1);
    bool wg = c->cc == 90 && d <= 128 && !a->seq_end && !latent;
    bool alone = wg ? kv->n_seqs == 1 : latent && a->group >= rows;
    struct cut p = {};

    a->tile_heads = a->group < rows ? a->group : rows;
    p.seq = kv->seq;
    p.pos = kv->pos;
    p.n_tokens = n_tokens;
    p.tile_tokens = rows / a->tile_heads;
    p.least = alone ? 1 : TILE_LEAST;
    p.max_tiles = n_tokens;
    if (!wg && (n_tokens + p.tile_tokens - 1) / p.tile_tokens + kv->n_seqs < n_tokens)
        p.max_tiles = (n_tokens + p.tile_tokens - 1) / p.tile_tokens + kv->n_seqs; /* the grid's */
    p.tile = (int2 *)(s + at.tiles);
    p.row = (int *)(s + at.rows);
    p.n_tiles = (int *)(s + at.counts);
    p.n_rows = p.n_tiles + 1;
    p.next_tile = (unsigned *)(p.n_tiles + 2);
    cu_launch(c, "attend cut", attend_cut, dim3(1), dim3(CUT_THREADS), 0, p);
    a->tile_list = p.tile;
    a->n_tiles = p.n_tiles;
    a->next_tile = p.next_tile;
    a->row_list = p.row;
    a->n_rows = p.n_rows;
    int parts = (a->group + a->tile_heads - 1) / a->tile_heads;
    dim3 grid(a->kv.n_kv_heads * parts, p.max_tiles);
    if (wg) attend_wgs(c, a);
    else if (latent) attend_latents(c, a, grid);
    else if (a->kv.type == DT_F16 && a->kv.whole) attend_tiles_f16(c, a, grid);
    else attend_tiles_any(c, a, grid);
    if (!alone) attend_rows(c, a, few, kv->n_seqs, kv->max_pos);
}

static bool check(struct cuda *c, const struct attend_opt *o, const struct kvlayer *l)
{
    if (o->head_dim > MAX_DIM || o->head_dim_v > MAX_DIM) {
        cu_fail(c, E_UNSUPPORTED, "attention heads of %d and %d numbers: at most %d", o->head_dim,
                o->head_dim_v, MAX_DIM);
        return false;
    }
    if (o->n_kv_heads < 1 || o->n_heads % o->n_kv_heads || l->n_kv_heads != o->n_kv_heads ||
        l->head_dim != o->head_dim || l->head_dim_v != o->head_dim_v) {
        cu_fail(c, E_INVALID,
                "attention of %d heads over %d of %d and %d numbers; kept are %d of %d and %d",
                o->n_heads, o->n_kv_heads, o->head_dim, o->head_dim_v, l->n_kv_heads, l->head_dim,
                l->head_dim_v);
        return false;
    }
    return true;
}

/* One token's rotation as a part of its attention; false: not for these heads and types. */
static bool turn_here(struct cuda *c, struct attend_dev *a, const struct cu_rope_kv *rope)
{
    enum dtype t = rope->kv->type;

    if (rope->kv->n_tokens != 1 || a->seq_end || (t != DT_F16 && t != DT_BF16 && t != DT_F8_E4M3))
        return false;
    if (!rope_dev_of(c, &a->rope, rope)) return false;
    if (a->q_whole && row_turn_can(&a->rope)) {
        kv_is_put(&a->rope, 1);
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

    if (kv->n_tokens == 0 || !check(c, opt, &kv->layers[layer]) || !kv_dev_of(c, &a.kv, kv, layer))
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
    a.seq_end = opt->bidirectional ? kv->seq_end : NULL;
    a.one_seq = kv->n_seqs == 1;
    a.sinks = opt->sinks;
    a.slopes = opt->slopes;
    a.q_whole = (uintptr_t)q->data % 16 == 0 && q->stride % 4 == 0 && a.dk % 8 == 0;
    a.done = (unsigned *)s;
    a.part = (float *)(s + scratch_of(c->lim.max_tokens).parts);
    bool wide = a.kv.v_in_k ? !attend_latent_can(c, &a) : a.dk > 256 || a.dv > 256;
    bool rows = kv->n_tokens <= TILE_LEAST || kv->n_tokens == kv->n_seqs;
    if (wide || (rows && !is_tiles(c, &a)) || kv->n_tokens > PLAN_TOKENS) {
        /* Positions and tables came by a copy, which kernels of this step do not overlap, and keys
         * of former steps lie where they lay: these may be read while the kernel before still
         * writes this step's. */
        if (rope && !turn_here(c, &a, rope)) cu_rope_kv(c, rope);
        a.early = !opt->bidirectional && kv_just_put(kv, layer);
        attend_rows(c, &a, kv->n_tokens, kv->n_tokens, kv->max_pos);
    } else {
        if (rope) cu_rope_kv(c, rope);
        attend_mixed(c, &a, kv);
    }
}
