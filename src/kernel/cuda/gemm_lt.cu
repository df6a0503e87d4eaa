/* gemm_lt.cu - cuBLASLt, opened at run time: nothing links it, and without it the kernels of
 * gemm_mid.cuh do. */
#include "kernel/cuda/cu_gemm.cuh"

#include <stdio.h>
#include <stdlib.h>

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#include <dlfcn.h>

#define LT_PLANS 256
#define LT_CHOICES 16

/* Everything that a choice depends on, and the choice. */
struct lt_plan {
    int rows, cols, tokens, ldw, ldx;
    size_t ldo, work_bytes;
    int align; /* of the output: 16 or less */
    bool add, bias, to_half;
    bool made, bad;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t w, x, out;
    cublasLtMatmulAlgo_t algo;
};

struct lt {
    void *lib;
    cublasLtHandle_t h;
    cublasLtMatmulPreference_t pref;
    struct lt_plan plan[LT_PLANS];
    int next;   /* the oldest one, to be replaced */
    int choice; /* which of the library's proposals, from the best on */
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

static void *lib_open(void)
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

static bool lib_find(struct lt *l)
{
#define LT_FIND(name) \
    if (!(l->name = (decltype(l->name))dlsym(l->lib, "cublasLt" #name))) return false;
    LT_CALLS(LT_FIND)
#undef LT_FIND
    return true;
}

struct lt *lt_open(void)
{
    struct lt *l = (struct lt *)calloc(1, sizeof *l);

    if (!l) return NULL;
    if ((l->lib = lib_open()) && lib_find(l) && l->Create(&l->h) == CUBLAS_STATUS_SUCCESS) {
        if (l->MatmulPreferenceCreate(&l->pref) == CUBLAS_STATUS_SUCCESS) return l;
        l->Destroy(l->h);
    }
    if (l->lib) dlclose(l->lib);
    free(l);
    return NULL;
}

static void plan_drop(struct lt *l, struct lt_plan *p)
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
    for (int i = 0; i < LT_PLANS; i++) plan_drop(l, &l->plan[i]);
    l->MatmulPreferenceDestroy(l->pref);
    l->Destroy(l->h);
    dlclose(l->lib);
    free(l);
}

void lt_choose(struct lt *l, int choice)
{
    for (int i = 0; l && i < LT_PLANS; i++) plan_drop(l, &l->plan[i]);
    if (l) l->next = 0, l->choice = choice < LT_CHOICES ? choice : LT_CHOICES - 1;
}

const char *lt_version(const struct lt *l, char *buf, size_t n)
{
    size_t v = l ? l->GetVersion() : 0;
    snprintf(buf, n, l ? "cuBLASLt %zu.%zu.%zu" : "no cuBLASLt", v / 10000, v / 100 % 100, v % 100);
    return buf;
}

/* ---- plans ---- */

static bool plan_same(const struct lt_plan *a, const struct lt_plan *b)
{
    return a->rows == b->rows && a->cols == b->cols && a->tokens == b->tokens && a->ldw == b->ldw &&
           a->ldx == b->ldx && a->ldo == b->ldo && a->work_bytes == b->work_bytes &&
           a->align == b->align && a->add == b->add && a->bias == b->bias &&
           a->to_half == b->to_half;
}

static bool pref_set(struct lt *l, cublasLtMatmulPreferenceAttributes_t what, uint32_t v)
{
    return l->MatmulPreferenceSetAttribute(l->pref, what, &v, sizeof v) == CUBLAS_STATUS_SUCCESS;
}

/* In the library's terms, columns first: out [rows x tokens] = w' [rows x cols] x [cols x tokens].
 */
static bool plan_describe(struct lt *l, struct lt_plan *p)
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

static bool plan_make(struct lt *l, struct lt_plan *p)
{
    cublasLtMatmulHeuristicResult_t found[LT_CHOICES];
    int n = 0;

    if (!plan_describe(l, p)) return false;
    if (l->MatmulPreferenceSetAttribute(l->pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                        &p->work_bytes,
                                        sizeof p->work_bytes) != CUBLAS_STATUS_SUCCESS ||
        !pref_set(l, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)p->align) ||
        !pref_set(l, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)p->align))
        return false;
    if (l->MatmulAlgoGetHeuristic(l->h, p->desc, p->w, p->x, p->out, p->out, l->pref, l->choice + 1,
                                  found, &n) != CUBLAS_STATUS_SUCCESS ||
        n < 1)
        return false;
    p->algo = found[l->choice < n ? l->choice : n - 1].algo;
    return true;
}

static struct lt_plan *plan_get(struct lt *l, const struct lt_plan *want)
{
    struct lt_plan *p;

    for (int i = 0; i < LT_PLANS && l->plan[i].made; i++)
        if (plan_same(&l->plan[i], want)) return &l->plan[i];
    p = &l->plan[l->next];
    l->next = (l->next + 1) % LT_PLANS;
    plan_drop(l, p);
    *p = *want;
    p->made = true;
    p->bad = !plan_make(l, p);
    return p;
}

bool lt_run(struct cuda *c, struct lt *l, const struct lt_job *j, void *work, size_t work_bytes)
{
    struct lt_plan want = {};
    float beta = j->add ? 1 : 0;
    uintptr_t out = (uintptr_t)j->out | (uintptr_t)j->ldo * (j->to_half ? 2 : 4);

    if (!l) return false;
    want.rows = j->rows, want.cols = j->cols, want.tokens = j->tokens;
    want.ldw = j->ldw, want.ldx = j->ldx, want.ldo = j->ldo;
    want.work_bytes = work_bytes;
    want.align = out % 16 == 0 ? 16 : out % 8 == 0 ? 8 : out % 4 == 0 ? 4 : 2;
    want.add = j->add, want.bias = j->bias != NULL, want.to_half = j->to_half;
    struct lt_plan *p = plan_get(l, &want);
    if (p->bad) return false;
    if (j->bias && l->MatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &j->bias,
                                             sizeof j->bias) != CUBLAS_STATUS_SUCCESS)
        return false;
    cu_begin(c, "gemm cublaslt");
    cublasStatus_t rc = l->Matmul(l->h, p->desc, &j->scale, j->w, p->w, j->x, p->x, &beta, j->out,
                                  p->out, j->out, p->out, &p->algo, work, work_bytes, c->stream);
    cu_end(c);
    if (rc != CUBLAS_STATUS_SUCCESS) p->bad = true;
    return rc == CUBLAS_STATUS_SUCCESS;
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
