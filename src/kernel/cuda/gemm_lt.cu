/* gemm_lt.cu - cuBLASLt, opened at run time by dlopen. Nothing links it; without it the packed GEMM
 * does the work.
 *
 * The library's heuristic is asked once for each shape, and its answer (a plan) is cached: it takes
 * longer than a small product.
 *
 * The library chooses among many kernels by the number of tokens, and the driver loads a kernel from the
 * library's file when it is first launched, which stops the GPU for milliseconds to tenths of a second.
 * So a weight's shape that comes with more tokens than before is multiplied for smaller numbers of
 * tokens, too (load_kernels). The warm-up's step has as many tokens as a step may have: after it nothing is
 * loaded while others wait for their tokens. */
#include "kernel/cuda/cu_gemm.cuh"

extern "C" {
#include "base/mem.h"
}

#include <stdio.h>

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#include <dlfcn.h>

#define LT_PLANS 256
#define LT_CHOICES 16
#define LT_SHAPES 64

/* Everything that the choice of an algorithm depends on, and the choice. */
struct lt_plan {
    int rows, cols, tokens, ldw, ldx;
    size_t ldo, work_bytes;
    int align; /* alignment of the output in bytes, at most 16 */
    bool add, bias, to_half;
    bool made, bad;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t w, x, out;
    cublasLtMatmulAlgo_t algo;
};

/* A weight's shape, and up to how many tokens its kernels are loaded. */
struct lt_shape {
    int rows, cols, ldw, most;
    size_t ldo;
    bool bias, to_half;
};

struct lt {
    void *lib;
    cublasLtHandle_t h;
    cublasLtMatmulPreference_t pref;
    struct lt_plan plan[LT_PLANS];
    struct lt_shape shape[LT_SHAPES];
    int n_shapes;
    int next;   /* the oldest plan, which is replaced next */
    int choice; /* which of the library's proposals, 0 is the best */
/* clang-format off */
#define LT_CALLS(X) \
    X(Create) X(Destroy) X(GetVersion) X(MatmulDescCreate) X(MatmulDescDestroy) \
    X(MatmulDescSetAttribute) X(MatrixLayoutCreate) X(MatrixLayoutDestroy) \
    X(MatmulPreferenceCreate) X(MatmulPreferenceDestroy) X(MatmulPreferenceSetAttribute) \
    X(MatmulAlgoGetHeuristic) X(Matmul)
/* clang-format on */
#define LT_FIELD(name) decltype(&cublasLt##name) name;
    LT_CALLS(LT_FIELD)
#undef LT_FIELD
};

/* By soname first, then where the toolkit installs it. */
static void *open_library(void)
{
    static const char *const names[] = { "libcublasLt.so.13", "libcublasLt.so.12",
                                         "/usr/local/cuda/lib64/libcublasLt.so.13",
                                         "/usr/local/cuda/lib64/libcublasLt.so.12" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (lib) return lib;
    }
    return NULL;
}

/* All functions or none: an older library without one of them is not used. */
static bool find_calls(struct lt *l)
{
#define LT_FIND(name) \
    if (!(l->name = (decltype(l->name))dlsym(l->lib, "cublasLt" #name))) return false;
    LT_CALLS(LT_FIND)
#undef LT_FIND
    return true;
}

/* Any failure means that there is no library; the packed GEMM then does all. */
struct lt *lt_open(void)
{
    struct lt *l = mem_new(struct lt);

    if (!l) return NULL;
    if ((l->lib = open_library()) && find_calls(l) && l->Create(&l->h) == CUBLAS_STATUS_SUCCESS) {
        if (l->MatmulPreferenceCreate(&l->pref) == CUBLAS_STATUS_SUCCESS) return l;
        l->Destroy(l->h);
    }
    if (l->lib) dlclose(l->lib);
    mem_free(l);
    return NULL;
}

static void drop_plan(struct lt *l, struct lt_plan *p)
{
    if (p->w) l->MatrixLayoutDestroy(p->w);
    if (p->x) l->MatrixLayoutDestroy(p->x);
    if (p->out) l->MatrixLayoutDestroy(p->out);
    if (p->desc) l->MatmulDescDestroy(p->desc);
    memset(p, 0, sizeof *p);
}

void lt_close(struct lt *l)
{
    if (!l) return;
    for (int i = 0; i < LT_PLANS; i++) drop_plan(l, &l->plan[i]);
    l->MatmulPreferenceDestroy(l->pref);
    l->Destroy(l->h);
    dlclose(l->lib);
    mem_free(l);
}

void lt_choose(struct lt *l, int choice)
{
    for (int i = 0; l && i < LT_PLANS; i++) drop_plan(l, &l->plan[i]);
    if (l) l->next = 0, l->choice = choice < LT_CHOICES ? choice : LT_CHOICES - 1;
}

const char *lt_version(const struct lt *l, char *buf, size_t n)
{
    size_t v = l ? l->GetVersion() : 0;
    snprintf(buf, n, l ? "cuBLASLt %zu.%zu.%zu" : "no cuBLASLt", v / 10000, v / 100 % 100, v % 100);
    return buf;
}

/* ---- plans ---- */

static bool is_same_plan(const struct lt_plan *a, const struct lt_plan *b)
{
    return a->rows == b->rows && a->cols == b->cols && a->tokens == b->tokens && a->ldw == b->ldw &&
           a->ldx == b->ldx && a->ldo == b->ldo && a->work_bytes == b->work_bytes &&
           a->align == b->align && a->add == b->add && a->bias == b->bias &&
           a->to_half == b->to_half;
}

static bool set_preference(struct lt *l, cublasLtMatmulPreferenceAttributes_t what, uint32_t v)
{
    return l->MatmulPreferenceSetAttribute(l->pref, what, &v, sizeof v) == CUBLAS_STATUS_SUCCESS;
}

/* The library stores matrices by columns: out [rows x tokens] = w' [rows x cols] x [cols x
 * tokens]. */
static bool describe_plan(struct lt *l, struct lt_plan *p)
{
    cublasOperation_t trans = CUBLAS_OP_T;
    cublasLtEpilogue_t with_bias = CUBLASLT_EPILOGUE_BIAS;
    cudaDataType_t out = p->to_half ? CUDA_R_16F : CUDA_R_32F, f32 = CUDA_R_32F;

    if (l->MatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) != CUBLAS_STATUS_SUCCESS ||
        l->MatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &trans, sizeof trans) !=
            CUBLAS_STATUS_SUCCESS)
        return false;
    if (p->bias &&
        (l->MatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &with_bias,
                                   sizeof with_bias) ||
         l->MatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &f32, sizeof f32)))
        return false;
    return l->MatrixLayoutCreate(&p->w, CUDA_R_16F, p->cols, p->rows, p->ldw) ==
               CUBLAS_STATUS_SUCCESS &&
           l->MatrixLayoutCreate(&p->x, CUDA_R_16F, p->cols, p->tokens, p->ldx) ==
               CUBLAS_STATUS_SUCCESS &&
           l->MatrixLayoutCreate(&p->out, out, p->rows, p->tokens, (int64_t)p->ldo) ==
               CUBLAS_STATUS_SUCCESS;
}

/* Asks the heuristic for choice + 1 proposals and takes the last of them. */
static bool make_plan(struct lt *l, struct lt_plan *p)
{
    cublasLtMatmulHeuristicResult_t found[LT_CHOICES];
    int n = 0;

    if (!describe_plan(l, p)) return false;
    if (l->MatmulPreferenceSetAttribute(l->pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                        &p->work_bytes,
                                        sizeof p->work_bytes) != CUBLAS_STATUS_SUCCESS ||
        !set_preference(l, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)p->align) ||
        !set_preference(l, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)p->align))
        return false;
    if (l->MatmulAlgoGetHeuristic(l->h, p->desc, p->w, p->x, p->out, p->out, l->pref, l->choice + 1,
                                  found, &n) != CUBLAS_STATUS_SUCCESS ||
        n < 1)
        return false;
    p->algo = found[l->choice < n ? l->choice : n - 1].algo;
    return true;
}

/* A linear search over 256 plans; a model has some dozen shapes. The oldest plan is replaced. A
 * plan that could not be made stays in the cache as bad, so that it is not tried again. */
static struct lt_plan *find_or_make_plan(struct lt *l, const struct lt_plan *want)
{
    struct lt_plan *p;

    for (int i = 0; i < LT_PLANS && l->plan[i].made; i++)
        if (is_same_plan(&l->plan[i], want)) return &l->plan[i];
    p = &l->plan[l->next];
    l->next = (l->next + 1) % LT_PLANS;
    drop_plan(l, p);
    *p = *want;
    p->made = true;
    p->bad = !make_plan(l, p);
    return p;
}

static bool multiply(struct cuda *c, struct lt *l, const struct lt_job *j, void *work,
                     size_t work_bytes)
{
    struct lt_plan want = {};
    float beta = j->add ? 1 : 0;
    /* The alignment of the address and of the row pitch, together. */
    uintptr_t out = (uintptr_t)j->out | (uintptr_t)j->ldo * (j->to_half ? 2 : 4);

    want.rows = j->rows, want.cols = j->cols, want.tokens = j->tokens;
    want.ldw = j->ldw, want.ldx = j->ldx, want.ldo = j->ldo;
    want.work_bytes = work_bytes;
    want.align = out % 16 == 0 ? 16 : out % 8 == 0 ? 8 : out % 4 == 0 ? 4 : 2;
    want.add = j->add, want.bias = j->bias != NULL, want.to_half = j->to_half;
    struct lt_plan *p = find_or_make_plan(l, &want);
    if (p->bad) return false;
    if (j->bias && l->MatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &j->bias,
                                             sizeof j->bias) != CUBLAS_STATUS_SUCCESS)
        return false;
    cu_launch_begin(c, "gemm cublaslt");
    cublasStatus_t rc = l->Matmul(l->h, p->desc, &j->scale, j->w, p->w, j->x, p->x, &beta, j->out,
                                  p->out, j->out, p->out, &p->algo, work, work_bytes, c->stream);
    cu_launch_end(c);
    if (rc != CUBLAS_STATUS_SUCCESS) p->bad = true;
    return rc == CUBLAS_STATUS_SUCCESS;
}

/* ---- kernels of smaller steps ---- */

/* NULL: the table is full. */
static struct lt_shape *find_shape(struct lt *l, const struct lt_job *j)
{
    struct lt_shape *s = l->shape, *end = s + l->n_shapes;

    for (; s < end; s++)
        if (s->rows == j->rows && s->cols == j->cols && s->ldw == j->ldw && s->ldo == j->ldo &&
            s->bias == (j->bias != NULL) && s->to_half == j->to_half)
            return s;
    if (l->n_shapes == LT_SHAPES) return NULL;
    l->n_shapes++;
    *s = (struct lt_shape){};
    s->rows = j->rows, s->cols = j->cols, s->ldw = j->ldw, s->ldo = j->ldo;
    s->bias = j->bias != NULL, s->to_half = j->to_half;
    return s;
}

/* Multiplies the first rows of x, before the job itself, which overwrites the results or adds to them.
 * An output that is added to is left as it is: a product of 1e-37 is nothing beside it. Choices are finer for
 * few tokens. A step that is being captured has run before, so its shapes are known. */
static void load_kernels(struct cuda *c, struct lt *l, const struct lt_job *j, void *work,
                         size_t work_bytes)
{
    struct lt_shape *s = find_shape(l, j);
    struct lt_job small = *j;
    int from;

    if (!s || j->tokens <= s->most) return;
    from = s->most > j->least ? s->most : j->least;
    s->most = j->tokens;
    if (j->add) small.scale = 1e-37f, small.bias = NULL;
    for (int n = (from + 15) / 16 * 16; n < j->tokens; n += n < 256 ? 16 : 64) {
        small.tokens = n;
        multiply(c, l, &small, work, work_bytes);
    }
}

bool lt_run(struct cuda *c, struct lt *l, const struct lt_job *j, void *work, size_t work_bytes)
{
    if (!l) return false;
    load_kernels(c, l, j, work, work_bytes);
    return multiply(c, l, j, work, work_bytes);
}

#else
struct lt *lt_open(void) { return NULL; }
void lt_close(struct lt *l) { (void)l; }
void lt_choose(struct lt *, int) {}
const char *lt_version(const struct lt *, char *buf, size_t n)
{
    snprintf(buf, n, "built without cuBLASLt");
    return buf;
}
bool lt_run(struct cuda *, struct lt *, const struct lt_job *, void *, size_t) { return false; }
#endif
