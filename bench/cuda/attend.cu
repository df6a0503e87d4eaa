/* attend.cu - attention on the GPU: every option and odd shapes against double arithmetic on the
 * host, then times.
 *
 * KV blocks start as NaN, so that reads past the end of a sequence show. */
#include "bench.cuh"

extern "C" {
#include "kernel/quant.h"
}

#include <cuda_fp8.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

static double worst_rel;
static const char *worst_name;

static bool cuda_init(int max_tokens, int max_seqs)
{
    if (!open_device()) return false;
    cu.lim.max_tokens = max_tokens;
    cu.lim.max_seqs = max_seqs;
    cu.lim.n_heads = 128;
    cu.lim.head_dim = 576;
    cu.scratch_bytes[CU_ATTEND] = cu_attend_bytes(&cu, &cu.lim);
    printf("attention's scratch: %zu MB\n", cu.scratch_bytes[CU_ATTEND] >> 20);
    return ok(cudaMalloc(&cu.scratch[CU_ATTEND], cu.scratch_bytes[CU_ATTEND]), "scratch") &&
           ok(cudaMemset(cu.scratch[CU_ATTEND], 0, cu.scratch_bytes[CU_ATTEND]), "scratch") &&
           ok(cudaDeviceSynchronize(), "scratch");
}

template <typename T> static T *upload(const std::vector<T> &v)
{
    T *p = NULL;

    if (v.empty()) return NULL;
    if (!ok(cudaMalloc((void **)&p, v.size() * sizeof(T)), "malloc")) return NULL;
    ok(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice), "upload");
    return p;
}

/* ---- correctness ---- */

struct chunk {
    int start, n;
}; /* tokens [start, start + n) of one sequence */

struct test {
    const char *name;
    enum dtype type;
    int heads, kv_heads, dk, dv, window;
    float softcap;
    bool sinks, slopes, shuffled;
    std::vector<chunk> chunks;
    float bound;
};

struct world {
    std::vector<float> k, v;   /* [token of all sequences][kv_heads * d], as stored */
    std::vector<size_t> begin; /* first token of each sequence */
    std::vector<int32_t> table, seq, pos;
    int stride, max_pos, n_blocks;
};

static void encode(enum dtype t, const float *x, void *to, float *back, int n)
{
    if (t == DT_F8_E4M3)
        for (int i = 0; i < n; i++)
            ((uint8_t *)to)[i] = __nv_cvt_float_to_fp8(x[i], __NV_SATFINITE, __NV_E4M3);
    else quant_encode(t, x, to, n);
    quant_decode(t, to, back, n);
}

/* Sequences with their earlier tokens, blocks in random order. */
static void world_make(struct world *w, const struct test *t, std::vector<char> *kb,
                       std::vector<char> *vb, struct kvlayer *l)
{
    uint64_t rk, rv;
    std::vector<int32_t> ids;

    dtype_row_bytes(t->type, (uint64_t)t->dk, &rk);
    dtype_row_bytes(t->type, (uint64_t)t->dv, &rv);
    l->n_kv_heads = t->kv_heads;
    l->head_dim = t->dk;
    l->head_dim_v = t->dv;
    l->k_block_bytes = rk * KV_BLOCK * (size_t)t->kv_heads;
    l->v_block_bytes = rv * KV_BLOCK * (size_t)t->kv_heads;
    w->max_pos = 0;
    w->n_blocks = 0;
    for (const chunk &c : t->chunks) {
        int end = c.start + c.n;
        if (end - 1 > w->max_pos) w->max_pos = end - 1;
        w->n_blocks += (end + KV_BLOCK - 1) / KV_BLOCK;
    }
    w->stride = w->max_pos / KV_BLOCK + 2;
    for (int i = 0; i < w->n_blocks; i++) ids.push_back(i);
    for (int i = w->n_blocks - 1; i > 0; i--) std::swap(ids[i], ids[below(i + 1)]);
    kb->assign(l->k_block_bytes * (size_t)w->n_blocks, (char)0xff);
    vb->assign(l->v_block_bytes * (size_t)w->n_blocks, (char)0xff);
    w->table.assign((size_t)w->stride * t->chunks.size(), 0x7fffffff);
    int used = 0;
    size_t n = 0;
    for (size_t s = 0; s < t->chunks.size(); s++) {
        int end = t->chunks[s].start + t->chunks[s].n;
        w->begin.push_back(n);
        for (int b = 0; b < (end + KV_BLOCK - 1) / KV_BLOCK; b++)
            w->table[s * (size_t)w->stride + (size_t)b] = ids[used++];
        n += (size_t)end;
    }
    w->k.resize(n * (size_t)(t->kv_heads * t->dk));
    w->v.resize(n * (size_t)(t->kv_heads * t->dv));
    std::vector<float> x((size_t)(t->dk > t->dv ? t->dk : t->dv));
    for (size_t s = 0; s < t->chunks.size(); s++)
        for (int p = 0; p < t->chunks[s].start + t->chunks[s].n; p++)
            for (int h = 0; h < t->kv_heads; h++) {
                size_t block = (size_t)w->table[s * (size_t)w->stride + (size_t)(p / KV_BLOCK)];
                size_t row = (size_t)h * KV_BLOCK + (size_t)(p % KV_BLOCK),
                       at = (w->begin[s] + (size_t)p) * (size_t)t->kv_heads + (size_t)h;
                for (float &f : x) f = normal();
                encode(t->type, x.data(), kb->data() + block * l->k_block_bytes + row * rk,
                       &w->k[at * (size_t)t->dk], t->dk);
                for (float &f : x) f = normal();
                encode(t->type, x.data(), vb->data() + block * l->v_block_bytes + row * rv,
                       &w->v[at * (size_t)t->dv], t->dv);
            }
    std::vector<std::pair<int, int>> toks;
    for (size_t s = 0; s < t->chunks.size(); s++)
        for (int i = 0; i < t->chunks[s].n; i++) toks.push_back({ (int)s, t->chunks[s].start + i });
    if (t->shuffled)
        for (size_t i = toks.size() - 1; i > 0; i--)
            std::swap(toks[i], toks[(size_t)below((int)i + 1)]);
    for (auto &tok : toks) w->seq.push_back(tok.first), w->pos.push_back(tok.second);
}

static void reference(const struct test *t, const struct world *w, const float *q,
                      const float *sinks, const float *slopes, int token, int head, double *out)
{
    int seq = w->seq[(size_t)token], pos = w->pos[(size_t)token],
        kvh = head / (t->heads / t->kv_heads);
    int first = t->window > 0 && pos >= t->window ? pos - t->window + 1 : 0;
    double scale = 1 / sqrt((double)t->dk), max = sinks ? sinks[head] : -INFINITY, sum;
    std::vector<double> s((size_t)pos + 1);

    for (int k = first; k <= pos; k++) {
        const float *kk =
            &w->k[((w->begin[(size_t)seq] + (size_t)k) * (size_t)t->kv_heads + (size_t)kvh) *
                  (size_t)t->dk];
        double x = 0;
        for (int i = 0; i < t->dk; i++) x += (double)q[i] * kk[i];
        x *= scale;
        if (t->softcap > 0) x = t->softcap * tanh(x / t->softcap);
        if (slopes) x += (double)slopes[head] * (k - pos);
        s[(size_t)k] = x;
        if (x > max) max = x;
    }
    sum = sinks ? exp(sinks[head] - max) : 0;
    for (int i = 0; i < t->dv; i++) out[i] = 0;
    for (int k = first; k <= pos; k++) {
        const float *v =
            &w->v[((w->begin[(size_t)seq] + (size_t)k) * (size_t)t->kv_heads + (size_t)kvh) *
                  (size_t)t->dv];
        double p = exp(s[(size_t)k] - max);
        sum += p;
        for (int i = 0; i < t->dv; i++) out[i] += p * v[i];
    }
    for (int i = 0; i < t->dv; i++) out[i] /= sum;
}

static void check(const struct test *t)
{
    struct world w;
    std::vector<char> kb, vb;
    struct kvlayer l = {};
    world_make(&w, t, &kb, &vb, &l);
    int n = (int)w.seq.size();
    std::vector<float> q((size_t)n * (size_t)(t->heads * t->dk)),
        out((size_t)n * (size_t)(t->heads * t->dv)), sinks, slopes;
    for (float &f : q) f = normal() * 2;
    for (int i = 0; i < t->heads && t->sinks; i++) sinks.push_back(normal() * 2);
    for (int i = 0; i < t->heads && t->slopes; i++)
        slopes.push_back(0.02f * (float)(i + 1) / (float)t->heads);
    float *dq = upload(q), *dout = upload(out), *dsinks = upload(sinks), *dslopes = upload(slopes);
    int32_t *dt = upload(w.table), *ds = upload(w.seq), *dp = upload(w.pos);
    l.k = upload(kb), l.v = upload(vb);
    struct kvview kv = { t->type,        &l,  1, dt, w.stride, ds, dp, n, (int)t->chunks.size(),
                         w.max_pos + 17, NULL };
    struct attend_opt o = {
        t->heads,   t->kv_heads, t->dk, t->dv,  (float)(1 / sqrt((double)t->dk)),
        t->softcap, t->window,   false, dsinks, dslopes,
        0,          NULL
    };
    struct tensor tq = tensor_f32(dq, n, t->heads * t->dk),
                  to = tensor_f32(dout, n, t->heads * t->dv);
    double worst = 0, diff = 0, size = 0;
    int checked = 0;
    std::vector<double> ref((size_t)t->dv);

    for (int round = 0; round < 2;
         /* The second round finds the counters as the first one left them. */
         round++) {
        ok(cudaMemset(dout, 0xff, out.size() * sizeof(float)), "poison");
        ok(cudaDeviceSynchronize(), "poison");
        cu_attend(&cu, &to, &tq, &kv, 0, &o, NULL);
        if (!wait_all(t->name)) goto out;
    }
    ok(cudaMemcpy(out.data(), dout, out.size() * sizeof(float), cudaMemcpyDeviceToHost), "result");
    for (size_t i = 0; i < out.size(); i++)
        if (!(fabsf(out[i]) < 1e30f)) {
            worst = INFINITY;
            printf("    not written, or NaN: token %zu column %zu\n",
                   i / (size_t)(t->heads * t->dv), i % (size_t)(t->heads * t->dv));
            break;
        }
    for (int i = 0; i < n * t->heads; i++) {
        if (n * t->heads > 600 && below(n * t->heads) > 600) continue;
        int token = i / t->heads, head = i % t->heads;
        double e = 0, r = 0;
        reference(t, &w, &q[(size_t)token * (size_t)(t->heads * t->dk) + (size_t)(head * t->dk)],
                  t->sinks ? sinks.data() : NULL, t->slopes ? slopes.data() : NULL, token, head,
                  ref.data());
        for (int d = 0; d < t->dv; d++) {
            double x = out[(size_t)i * (size_t)t->dv + (size_t)d] - ref[(size_t)d];
            e += x * x, r += ref[(size_t)d] * ref[(size_t)d];
        }
        diff += e, size += r, checked++;
        worst = fmax(worst, sqrt(e / r));
    }
    {
        double rel = sqrt(diff / size);
        bool good = rel <= t->bound && worst <= 8 * t->bound;
        if (!good) n_failed++;
        if (!good)
            printf("%-34s %5d tokens  rel %.2e  worst row %.2e  FAILED\n", t->name, n, rel, worst);
        if (rel > worst_rel) worst_rel = rel, worst_name = t->name;
    }
out:
    cudaFree(dq), cudaFree(dout), cudaFree(dsinks), cudaFree(dslopes), cudaFree(dt), cudaFree(ds),
        cudaFree(dp);
    cudaFree(l.k), cudaFree(l.v);
}

/* The tests whose name contains `which`. */
static void check_all(const char *which)
{
    const std::vector<chunk> mixed = { { 500, 1 },   { 100, 7 },  { 0, 16 }, { 77, 33 },
                                       { 300, 200 }, { 1200, 1 }, { 0, 1 },  { 15, 40 } };
    const std::vector<chunk> decode = { { 0, 1 },   { 15, 1 },  { 16, 1 },
                                        { 700, 1 }, { 333, 1 }, { 2100, 1 } };
    const std::vector<chunk> single = { { 5000, 1 } }, few = { { 900, 5 } }, whole = { { 0, 300 } };
    const struct test tests[] = {
        { "f16 decode 32/8x128", DT_F16, 32, 8, 128, 128, 0, 0, 0, 0, 0, decode, 1e-3f },
        { "f16 one row, split", DT_F16, 32, 8, 128, 128, 0, 0, 0, 0, 0, single, 1e-3f },
        { "f16 five rows", DT_F16, 32, 8, 128, 128, 0, 0, 0, 0, 0, few, 1e-3f },
        { "f16 prefill 32/8x128", DT_F16, 32, 8, 128, 128, 0, 0, 0, 0, 0, whole, 1e-3f },
        { "f16 one sequence, any order", DT_F16, 32, 8, 128, 128, 0, 0, 0, 0, 1, whole, 1e-3f },
        { "f16 mixed", DT_F16, 8, 2, 128, 128, 0, 0, 0, 0, 0, mixed, 1e-3f },
        { "f16 mixed, any order", DT_F16, 8, 2, 128, 128, 0, 0, 0, 0, 1, mixed, 1e-3f },
        { "f16 mixed 4/4x64", DT_F16, 4, 4, 64, 64, 0, 0, 0, 0, 0, mixed, 1e-3f },
        { "f16 mixed 6/2x80", DT_F16, 6, 2, 80, 80, 0, 0, 0, 0, 0, mixed, 1e-3f },
        { "f16 mixed 10/2x96", DT_F16, 10, 2, 96, 96, 0, 0, 0, 0, 0, mixed, 1e-3f },
        { "f16 mixed 20/1x32", DT_F16, 20, 1, 32, 32, 0, 0, 0, 0, 0, mixed, 1e-3f },
        { "f16 mixed 4/2x256", DT_F16, 4, 2, 256, 256, 0, 0, 0, 0, 0, mixed, 1e-3f },
        { "f16 mixed 4/2x192/128", DT_F16, 4, 2, 192, 128, 0, 0, 0, 0, 0, mixed, 1e-3f },
        { "f16 mixed 16/1x576/512", DT_F16, 16, 1, 576, 512, 0, 0, 0, 0, 0, mixed, 1e-3f },
        { "f16 mixed 4/2x20 (odd)", DT_F16, 4, 2, 20, 12, 0, 0, 0, 0, 0, mixed, 1e-3f },
        { "f16 mixed 2/1x7 (odd)", DT_F16, 2, 1, 7, 7, 0, 0, 0, 0, 0, mixed, 1e-3f },
        { "f16 window 50", DT_F16, 8, 2, 128, 128, 50, 0, 0, 0, 0, mixed, 1e-3f },
        { "f16 window 50 decode", DT_F16, 8, 2, 128, 128, 50, 0, 0, 0, 0, decode, 1e-3f },
        { "f16 softcap", DT_F16, 8, 2, 128, 128, 0, 5, 0, 0, 0, mixed, 1e-3f },
        { "f16 sinks", DT_F16, 8, 2, 64, 64, 0, 0, 1, 0, 0, mixed, 1e-3f },
        { "f16 sinks, window decode", DT_F16, 64, 8, 64, 64, 128, 0, 1, 0, 0, decode, 1e-3f },
        { "f16 slopes", DT_F16, 8, 8, 64, 64, 0, 0, 0, 1, 0, mixed, 1e-3f },
        { "f16 all of it", DT_F16, 12, 4, 80, 80, 100, 10, 1, 1, 1, mixed, 1e-3f },
        { "f32 mixed", DT_F32, 8, 2, 128, 128, 0, 0, 0, 0, 0, mixed, 1e-3f },
        { "f32 mixed 4/2x18 (odd)", DT_F32, 4, 2, 18, 18, 0, 0, 0, 0, 0, mixed, 1e-3f },
        { "bf16 mixed", DT_BF16, 8, 2, 128, 128, 0, 0, 0, 0, 0, mixed, 1e-3f },
        { "bf16 decode", DT_BF16, 8, 2, 64, 64, 0, 0, 0, 0, 0, decode, 1e-3f },
        { "f8 mixed", DT_F8_E4M3, 8, 2, 128, 128, 0, 0, 0, 0, 0, mixed, 1e-3f },
        { "f8 decode 4/4x72", DT_F8_E4M3, 4, 4, 72, 72, 0, 0, 0, 0, 0, decode, 1e-3f },
        { "q8_0 mixed", DT_Q8_0, 8, 2, 128, 128, 0, 0, 0, 0, 0, mixed, 1e-3f },
        { "q8_0 decode 32/8x128", DT_Q8_0, 32, 8, 128, 128, 0, 0, 0, 0, 0, decode, 1e-3f },
        { "q8_0 one row, split", DT_Q8_0, 32, 8, 128, 128, 0, 0, 0, 0, 0, single, 1e-3f },
        { "q8_0 mixed 6/2x96", DT_Q8_0, 6, 2, 96, 96, 0, 0, 0, 0, 0, mixed, 1e-3f },
        { "q8_0 mixed 4/1x576/512", DT_Q8_0, 4, 1, 576, 512, 0, 0, 0, 0, 0, mixed, 1e-3f },
        { "q8_0 mixed 4/4x64, all of it", DT_Q8_0, 4, 4, 64, 64, 60, 8, 1, 1, 0, mixed, 1e-3f },
    };

    for (const struct test &t : tests)
        if (strstr(t.name, which)) check(&t);
    printf("attention: largest error %.2e of %s\n", worst_rel, worst_name);
}

/* ---- rope and KV writes ---- */

static void check_rope_kv(enum dtype type, int dk, int dv, int n_rot, enum rope_style style,
                          bool norms)
{
    int heads = 6, kvh = 2, n = 37;
    struct test t = { "", type, heads, kvh, dk, dv,
                      0,  0,    0,     0,   0,  { { 0, 20 }, { 14, 1 }, { 40, 16 } },
                      0 };
    struct world w;
    std::vector<char> kb, vb;
    struct kvlayer l = {};
    world_make(&w, &t, &kb, &vb, &l);
    std::vector<float> q((size_t)(n * heads * dk)), k((size_t)(n * kvh * dk)),
        v((size_t)(n * kvh * dv)), table((size_t)(n * n_rot)), qn((size_t)dk), kn((size_t)dk);
    for (auto *x : { &q, &k, &v })
        for (float &f : *x) f = normal();
    for (auto *x : { &qn, &kn })
        for (float &f : *x) f = 1 + 0.3f * normal();
    for (size_t i = 0; i + 1 < table.size(); i += 2)
        table[i] = cosf((float)i * 0.37f), table[i + 1] = sinf((float)i * 0.37f);
    float *dq = upload(q), *dkk = upload(k), *dvv = upload(v), *dtab = upload(table),
          *dqn = upload(qn), *dkn = upload(kn);
    int32_t *dt = upload(w.table), *ds = upload(w.seq), *dp = upload(w.pos);
    l.k = upload(kb), l.v = upload(vb);
    struct kvview kv = { type, &l, 1, dt, w.stride, ds, dp, n, 3, w.max_pos, NULL };
    struct cu_rope_kv r = { tensor_f32(dq, n, heads * dk),
                            tensor_f32(dkk, n, kvh * dk),
                            tensor_f32(dvv, n, kvh * dv),
                            heads,
                            kvh,
                            dk,
                            dv,
                            n_rot,
                            norms ? dqn : NULL,
                            norms ? dkn : NULL,
                            1e-5f,
                            dtab,
                            style,
                            &kv,
                            0 };
    double worst = 0;
    uint64_t rk, rv;
    dtype_row_bytes(type, (uint64_t)dk, &rk);
    dtype_row_bytes(type, (uint64_t)dv, &rv);
    cu_rope_kv(&cu, &r);
    if (wait_all("rope_kv")) {
        auto rotated = [&](const float *x, const float *nw, int token) {
            std::vector<double> y(x, x + dk);
            double sum = 0;
            for (double z : y) sum += z * z;
            if (norms)
                for (int i = 0; i < dk; i++) y[(size_t)i] *= nw[i] / sqrt(sum / dk + 1e-5);
            for (int i = 0; i < n_rot / 2; i++) {
                size_t a = (size_t)(style == ROPE_HALF ? i : 2 * i),
                       b = style == ROPE_HALF ? a + (size_t)n_rot / 2 : a + 1;
                double c = table[(size_t)(token * n_rot + 2 * i)],
                       s = table[(size_t)(token * n_rot + 2 * i + 1)], u = y[a], z = y[b];
                y[a] = u * c - z * s, y[b] = u * s + z * c;
            }
            return y;
        };
        ok(cudaMemcpy(kb.data(), l.k, kb.size(), cudaMemcpyDeviceToHost), "keys");
        ok(cudaMemcpy(vb.data(), l.v, vb.size(), cudaMemcpyDeviceToHost), "values");
        std::vector<float> q2(q.size()), row(1024);
        ok(cudaMemcpy(q2.data(), dq, q.size() * 4, cudaMemcpyDeviceToHost), "queries");
        double step = type == DT_F32    ? 1e-6
                      : type == DT_F16  ? 5e-4
                      : type == DT_BF16 ? 4e-3
                      : type == DT_Q8_0 ? 5e-3
                                        : 0.063;
        for (int i = 0; i < n; i++) {
            size_t block = (size_t)w.table[(size_t)w.seq[(size_t)i] * (size_t)w.stride +
                                           (size_t)(w.pos[(size_t)i] / KV_BLOCK)];
            for (int h = 0; h < heads; h++) {
                std::vector<double> y = rotated(&q[(size_t)((i * heads + h) * dk)], qn.data(), i);
                for (int d = 0; d < dk; d++)
                    worst =
                        fmax(worst, fabs(y[(size_t)d] - q2[(size_t)((i * heads + h) * dk + d)]) /
                                        (1e-6 * (fabs(y[(size_t)d]) + 1)) * 0.2);
            }
            for (int h = 0; h < kvh; h++) {
                size_t at = (size_t)h * KV_BLOCK + (size_t)(w.pos[(size_t)i] % KV_BLOCK);
                std::vector<double> y = rotated(&k[(size_t)((i * kvh + h) * dk)], kn.data(), i);
                quant_decode(type, kb.data() + block * l.k_block_bytes + at * rk, row.data(), dk);
                double top = 0;
                for (double z : y) top = fmax(top, fabs(z));
                for (int d = 0; d < dk; d++) {
                    double e = type == DT_Q8_0 || type == DT_F32 ? top : fabs(y[(size_t)d]) + 2e-2;
                    worst = fmax(worst, fabs(y[(size_t)d] - row[(size_t)d]) / (step * e) * 0.9);
                }
                quant_decode(type, vb.data() + block * l.v_block_bytes + at * rv, row.data(), dv);
                const float *x = &v[(size_t)((i * kvh + h) * dv)];
                top = 0;
                for (int d = 0; d < dv; d++) top = fmax(top, fabs(x[d]));
                for (int d = 0; d < dv; d++) {
                    double e = type == DT_Q8_0 ? top : fabs(x[d]) + 2e-2;
                    worst = fmax(worst, fabs(x[d] - row[(size_t)d]) / (step * e) * 0.9);
                }
            }
        }
        if (!(worst <= 1)) n_failed++;
        printf("rope_kv %-8s %3d/%3d rot %3d style %d norms %d: worst %.2f of a rounding  %s\n",
               dtype_name(type), dk, dv, n_rot, style, norms, worst, worst <= 1 ? "ok" : "FAILED");
    }
    cudaFree(dq), cudaFree(dkk), cudaFree(dvv), cudaFree(dtab), cudaFree(dqn), cudaFree(dkn),
        cudaFree(dt), cudaFree(ds), cudaFree(dp);
    cudaFree(l.k), cudaFree(l.v);
}

/* A token whose values are NaN affects the later tokens of its sequence, and no others. */
static void check_nan(void)
{
    const int n = 60, bad = 25, heads = 4, kvh = 1, d = 64;
    struct test t = { "", DT_F16, heads, kvh, d, d, 0, 0, 0, 0, 0, { { 0, 40 }, { 0, 20 } }, 0 };
    struct world w;
    std::vector<char> kb, vb;
    struct kvlayer l = {};
    world_make(&w, &t, &kb, &vb, &l);
    std::vector<float> q((size_t)(n * heads * d)), k((size_t)(n * kvh * d)),
        v((size_t)(n * kvh * d)), out((size_t)(n * heads * d));
    for (auto *x : { &q, &k, &v })
        for (float &f : *x) f = normal();
    v[(size_t)(bad * d + 3)] = NAN;
    q[(size_t)(7 * heads * d + 1)] = NAN;
    float *dq = upload(q), *dkk = upload(k), *dvv = upload(v), *dout = upload(out);
    int32_t *dt = upload(w.table), *ds = upload(w.seq), *dp = upload(w.pos);
    l.k = upload(kb), l.v = upload(vb);
    struct kvview kv = { DT_F16, &l, 1, dt, w.stride, ds, dp, n, 2, w.max_pos, NULL };
    struct tensor tk = tensor_f32(dkk, n, kvh * d), tv = tensor_f32(dvv, n, kvh * d),
                  tq = tensor_f32(dq, n, heads * d);
    struct tensor to = tensor_f32(dout, n, heads * d);
    struct attend_opt o = { heads, kvh, d, d, 0.125f, 0, 0, false, NULL, NULL, 0, NULL };
    cu_kv_put(&cu, &kv, 0, &tk, &tv);
    cu_attend(&cu, &to, &tq, &kv, 0, &o, NULL);
    if (wait_all("nan")) {
        int wrong = 0;
        ok(cudaMemcpy(out.data(), dout, out.size() * 4, cudaMemcpyDeviceToHost), "result");
        for (int i = 0; i < n; i++) {
            bool any = false, want = i == 7 || (i >= bad && i < 40);
            for (int j = 0; j < heads * d; j++) any |= isnan(out[(size_t)(i * heads * d + j)]);
            wrong += any != want;
        }
        if (wrong) n_failed++;
        printf("NaN values stay in their sequence: %d of %d wrong  %s\n", wrong, n,
               wrong ? "FAILED" : "ok");
    }
    cudaFree(dq), cudaFree(dkk), cudaFree(dvv), cudaFree(dout), cudaFree(dt), cudaFree(ds),
        cudaFree(dp), cudaFree(l.k), cudaFree(l.v);
}

/* ---- times ---- */

/* F16 numbers below 2; in Q8_0 every 17th is a scale. */
static __global__ void fill(uint16_t *p, size_t n, bool q8)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ull;
        x ^= x >> 29, x *= 0xbf58476d1ce4e5b9ull, x ^= x >> 32;
        p[i] = q8 ? (i % 17 ? (uint16_t)x : 0x1c00) : (uint16_t)(x & 0xbbff);
    }
}

static float time_graph(int calls, void (*call)(void *, int), void *arg)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t a, b;
    float best = 1e30f;

    if (!ok(cudaStreamBeginCapture(cu.stream, cudaStreamCaptureModeThreadLocal), "capture"))
        return -1;
    for (int i = 0; i < calls; i++) call(arg, i);
    if (!ok(cudaStreamEndCapture(cu.stream, &graph), "capture") ||
        !ok(cudaGraphInstantiate(&exec, graph, 0), "graph"))
        return -1;
    cudaEventCreate(&a), cudaEventCreate(&b);
    for (int i = 0; i < 6; i++) {
        float ms;
        cudaEventRecord(a, cu.stream);
        cudaGraphLaunch(exec, cu.stream);
        cudaEventRecord(b, cu.stream);
        if (!wait_all("replay")) return -1;
        cudaEventElapsedTime(&ms, a, b);
        if (i > 0 && ms < best) best = ms;
    }
    cudaEventDestroy(a), cudaEventDestroy(b), cudaGraphExecDestroy(exec), cudaGraphDestroy(graph);
    return best * 1000.f / (float)calls;
}

struct speed {
    struct kvview kv;
    std::vector<struct kvlayer> layers;
    struct tensor q, out;
    struct attend_opt o;
    bool put;
};

static void speed_call(void *arg, int i)
{
    struct speed *s = (struct speed *)arg;

    int layer = i % (int)s->layers.size();
    struct tensor k = tensor_f32((float *)s->q.data, s->kv.n_tokens, 1024);

    if (s->put) cu_kv_put(&cu, &s->kv, layer, &k, &k);
    cu_attend(&cu, &s->out, &s->q, &s->kv, layer, &s->o, NULL);
}

/* Mistral's heads. n_decode sequences of ctx tokens with one new token each, then one chunk of
 * n_chunk tokens after `past`. */
static void speed(enum dtype type, int n_decode, int ctx, int n_chunk, int past)
{
    const int heads = 32, kvh = 8, d = 128;
    struct speed s;
    uint64_t row;
    int n = n_decode + n_chunk, n_seqs = n_decode + (n_chunk > 0), max_pos = 0;
    std::vector<int32_t> table, seq, pos;

    dtype_row_bytes(type, d, &row);
    int end = past + n_chunk > ctx ? past + n_chunk : ctx, stride = (end + KV_BLOCK - 1) / KV_BLOCK;
    size_t block = row * KV_BLOCK * kvh, n_blocks = (size_t)stride * (size_t)n_seqs;
    std::vector<int32_t> ids(n_blocks);
    for (size_t i = 0; i < n_blocks; i++) ids[i] = (int32_t)i;
    for (size_t i = n_blocks - 1; i > 0; i--) std::swap(ids[i], ids[(size_t)below((int)i + 1)]);
    table = ids;
    for (int i = 0; i < n_decode; i++) seq.push_back(i), pos.push_back(ctx - 1);
    for (int i = 0; i < n_chunk; i++) seq.push_back(n_decode), pos.push_back(past + i);
    for (int32_t p : pos) max_pos = p > max_pos ? p : max_pos;
    size_t used = 2 * block * n_blocks,
           sets = used < (size_t)300 << 20 ? ((size_t)300 << 20) / used + 1 : 1;
    if (sets > 600) sets = 600;
    for (size_t i = 0; i < sets; i++) {
        struct kvlayer l = { NULL, NULL, kvh, d, d, block, block, false, NULL, 0, 0 };
        if (!ok(cudaMalloc(&l.k, block * n_blocks), "keys") ||
            !ok(cudaMalloc(&l.v, block * n_blocks), "values"))
            return;
        fill<<<2048, 256, 0, cu.stream>>>((uint16_t *)l.k, block * n_blocks / 2, type == DT_Q8_0);
        fill<<<2048, 256, 0, cu.stream>>>((uint16_t *)l.v, block * n_blocks / 2, type == DT_Q8_0);
        s.layers.push_back(l);
    }
    std::vector<float> q((size_t)n * heads * d);
    for (float &f : q) f = normal();
    float *dq = upload(q), *dout = upload(q);
    int32_t *dt = upload(table), *ds = upload(seq), *dp = upload(pos);
    s.kv = { type, s.layers.data(), (int)sets, dt, stride, ds, dp, n, n_seqs, max_pos, NULL };
    s.q = tensor_f32(dq, n, heads * d);
    s.out = tensor_f32(dout, n, heads * d);
    s.o = { heads, kvh, d, d, 0.08838834764f, 0, 0, false, NULL, NULL, 0, NULL };
    s.put = false;
    float us = time_graph(sets > 64 ? (int)sets : sets > 1 ? 64 : 16, speed_call, &s), both = 0;
    s.put = true;
    if (n_decode) both = time_graph(sets > 64 ? (int)sets : sets > 1 ? 64 : 16, speed_call, &s);
    double bytes = 2.0 * row * kvh * ctx * n_decode,
           flop = 4.0 * heads * d * ((double)n_chunk * past + (double)n_chunk * (n_chunk + 1) / 2);
    printf("%-5s", dtype_name(type));
    if (n_decode) printf(" %4d rows of %5d", n_decode, ctx);
    if (n_chunk) printf(" %5d tokens after %d", n_chunk, past);
    printf(": %9.2f us", us);
    if (n_decode && !n_chunk) printf(" %7.0f GB/s, with kv_put %.2f us", bytes / us / 1e3, both);
    if (n_chunk && !n_decode) printf(" %7.0f TFLOP/s", flop / us / 1e6);
    printf("\n");
    for (struct kvlayer &l : s.layers) cudaFree(l.k), cudaFree(l.v);
    cudaFree(dq), cudaFree(dout), cudaFree(dt), cudaFree(ds), cudaFree(dp);
}

/* Prefill with the kernels for GPUs before Hopper. */
static void older(void)
{
    cu.cc = 89;
    printf("kernels for GPUs before Hopper:\n");
    check_all("mixed");
    for (int n : { 512, 2048, 4096 }) speed(DT_F16, 0, 0, n, 0);
    speed(DT_Q8_0, 0, 0, 4096, 0);
}

int main(int argc, char **argv)
{
    bool times = argc < 2 || strcmp(argv[1], "check") != 0,
         checks = argc < 2 || strcmp(argv[1], "time") != 0;

    if (!cuda_init(8192, 512)) return 1;
    if (checks) {
        check_all("");
        for (enum dtype t : { DT_F32, DT_F16, DT_BF16, DT_Q8_0, DT_F8_E4M3 })
            check_rope_kv(t, 128, 64, 128, ROPE_HALF, false);
        check_rope_kv(DT_F16, 96, 96, 64, ROPE_PAIR, true);
        check_rope_kv(DT_F32, 50, 30, 20, ROPE_HALF, true);
        check_nan();
    }
    if (times) {
        for (enum dtype t : { DT_F16, DT_Q8_0 })
            for (int n : { 1, 8, 64, 256 })
                for (int ctx : { 128, 512, 2048, 16384 })
                    if ((long long)n * ctx <= 64 * 16384) speed(t, n, ctx, 0, 0);
        for (enum dtype t : { DT_F16, DT_Q8_0 })
            for (int n : { 512, 2048, 4096 }) speed(t, 0, 0, n, 0);
        speed(DT_BF16, 0, 0, 4096, 0);
        for (enum dtype t : { DT_F16, DT_Q8_0, DT_BF16, DT_F8_E4M3 }) speed(t, 64, 1024, 0, 0);
        speed(DT_F16, 0, 0, 512, 3584);
        speed(DT_F16, 64, 1024, 448, 0);
        speed(DT_F16, 1, 16384, 512, 512);
        older();
    }
    printf(n_failed ? "%d FAILED\n" : "all ok\n", n_failed);
    return n_failed != 0;
}
