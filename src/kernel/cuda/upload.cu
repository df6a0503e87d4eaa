/* upload.cu - weights onto the device: one allocation (slab) for all weights that were added
 * together, packed and copied by several threads.
 *
 * Each thread takes the next piece of rows, packs it (cu_layout.cu) into one of its pinned buffers
 * and copies that on its own stream. So reading the file, packing and the PCIe transfer overlap. A
 * thread has three buffers and waits for the copy out of a buffer before it fills it again.
 *
 * The backend's thread calls add, finish and drop. The threads live inside upload_finish. On
 * failure no weight keeps a device address and the slab is freed. */
#include "kernel/cuda/cu_layout.cuh"
#include "kernel/cuda/record.cuh"

extern "C" {
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
}

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_READERS 8
#define BUFFERS 3 /* of each thread */
#define BUFFER_BYTES ((size_t)4 << 20)
#define ROW_UNIT 64 /* pieces start at multiples: layouts store rows in tiles of 16 */
#define ALIGN 256

struct slab { /* one allocation, and how many weights in it are not dropped yet */
    char *p;
    size_t bytes;
    int n_weights;
};

struct cu_upload {
    struct weight **added; /* since the last upload_finish */
    int n_added, cap_added;
    struct slab *slabs;
    int n_slabs, cap_slabs;
    uint64_t *orders; /* hashes of the orders of columns; the index + 1 is cu_order_id */
    int n_orders, cap_orders;
};

enum phase { PHASE_READ, PHASE_PACK, PHASE_SEND, PHASES };

struct piece {
    const struct weight *w;
    int matrix, r0, r1;
};

struct shared_work {
    struct cuda *c;
    struct piece *pieces;
    int n;
    int next;               /* the next piece to take, by __atomic_fetch_add */
    int failed;             /* the first cudaError_t that is not cudaSuccess */
    uint64_t spent[PHASES]; /* ns, of all threads together */
};

struct reader {
    struct shared_work *s;
    pthread_t thread;
    bool started;
    cudaStream_t stream;
    char *buffer[BUFFERS];
    cudaEvent_t sent[BUFFERS];
    uint64_t spent[PHASES];
};

/* NULL: no memory. */
static struct cu_upload *find_or_add_upload(struct cuda *c)
{
    if (!c->record->upload) c->record->upload = mem_new(struct cu_upload);
    return c->record->upload;
}

/* 0: a matrix of this width cannot have this type. */
static size_t row_bytes_of(const struct weight *w)
{
    if ((w->type == DT_GROUPED) != (w->group != NULL)) return 0;
    return weight_row_bytes(w);
}

/* The number of the order of w's columns, the same for equal orders: q, k and v mostly have one.
 * 0: no memory. */
static int find_or_add_order(struct cu_upload *u, const struct weight *w)
{
    uint64_t key = 14695981039346656037u ^ (uint64_t)w->cols;

    for (int c = 0; c < w->cols; c++) key = (key ^ (uint32_t)w->group->order[c]) * 1099511628211u;
    for (int i = 0; i < u->n_orders; i++)
        if (u->orders[i] == key) return i + 1;
    if (!mem_ensure_int(&u->orders, &u->cap_orders, u->n_orders + 1, sizeof *u->orders)) return 0;
    u->orders[u->n_orders++] = key;
    return u->n_orders;
}

/* w->layout of a weight of a quantized folder (see cu_layout.cuh). false: no memory. */
static bool choose_layout(struct cu_upload *u, struct weight *w)
{
    int order = 0;

    w->layout = cu_group_layout(w);
    /* A weight that is decoded gets the order of the activations. */
    if (!w->group->order || !layout_of(w->layout).cols) return true;
    if (!(order = find_or_add_order(u, w))) return false;
    w->layout += 128 * order;
    return true;
}

/* Matrices, and the order of their columns. */
static size_t bytes_on_device(const struct weight *w)
{
    size_t n = cu_weight_bytes((enum dtype)cu_type(w), w->rows, w->cols, w->n ? w->n : 1);
    return n && cu_order_id(w) ? n + (size_t)w->cols * sizeof(int32_t) : n;
}

/* Only notes the weight: the addresses are assigned by upload_finish, when the total size is
 * known. */
int upload_add(struct cuda *c, struct weight *w, struct err *e)
{
    struct cu_upload *u = find_or_add_upload(c);

    if (!u) return err_nomem(e, "the list of weights to upload");
    if (w->rows <= 0 || w->cols <= 0 || row_bytes_of(w) == 0)
        return err_set(e, E_FORMAT, "%s: a matrix of %d rows and %d columns cannot have type %s",
                       c->be.name, w->rows, w->cols, dtype_name(w->type));
    if (w->packed) return err_set(e, E_INVALID, "%s: a weight was uploaded twice", c->be.name);
    if (w->group && !choose_layout(u, w)) return err_nomem(e, "the orders of columns");
    if (!cu_matvec_supports(w->type) || bytes_on_device(w) == 0)
        return err_set(e, E_UNSUPPORTED, "%s: there are no kernels for weights of type %s",
                       c->be.name, dtype_name(w->type));
    if (!mem_ensure_int(&u->added, &u->cap_added, u->n_added + 1, sizeof *u->added))
        return err_nomem(e, "the list of weights to upload");
    u->added[u->n_added++] = w;
    return OK;
}

/* ---- pieces ---- */

/* Rows of a piece: as many as fit into a buffer in packed form, a multiple of ROW_UNIT. */
static int rows_of_piece(const struct weight *w)
{
    size_t row = w->packed_bytes / ((size_t)w->rows * (size_t)(w->n ? w->n : 1)) + 1;
    size_t rows = (BUFFER_BYTES - 8 * ALIGN) / row / ROW_UNIT * ROW_UNIT;
    return rows < ROW_UNIT ? ROW_UNIT : rows > 1 << 20 ? 1 << 20 : (int)rows;
}

/* Splits all added weights into pieces; returns how many. out NULL: only counts. */
static int split_into_pieces(const struct cu_upload *u, struct piece *out)
{
    int n = 0;

    for (int i = 0; i < u->n_added; i++) {
        const struct weight *w = u->added[i];
        int step = rows_of_piece(w);
        for (int m = 0; m < (w->n ? w->n : 1); m++)
            for (int r = 0; r < w->rows; r += step, n++)
                if (out)
                    out[n] = (struct piece){ w, m, r, r + step < w->rows ? r + step : w->rows };
    }
    return n;
}

/* The first byte of a piece in the mapped file. */
static const char *source_of(const struct piece *p)
{
    size_t row = row_bytes_of(p->w);
    return (const char *)p->w->data +
           ((size_t)p->matrix * (size_t)p->w->rows + (size_t)p->r0) * row;
}

/* Maps the pages of the file in one call. Otherwise each page that is in the page cache costs a
 * page fault. */
static void map_pages(const char *p, size_t n)
{
#ifdef MADV_POPULATE_READ
    size_t page = (size_t)sysconf(_SC_PAGESIZE), begin = (size_t)p / page * page,
           end = (size_t)p + n;
    madvise((void *)begin, end - begin, MADV_POPULATE_READ);
#else
    (void)p;
    (void)n;
#endif
}

/* Counts the time since *at for phase `on`. */
static void count_time(struct reader *r, enum phase on, uint64_t *at)
{
    uint64_t now = clock_ns();

    r->spent[on] += now - *at;
    *at = now;
}

/* Packs piece p into buffer k and starts its copy. A piece whose rows are too wide for a buffer
 * gets pinned memory of its own. */
static cudaError_t send_piece(struct reader *r, const struct piece *p, int k)
{
    struct cu_plane plane[4];
    void *dst[4] = { NULL };
    int n = cu_pack_planes(p->w, p->matrix, p->r0, p->r1, plane);
    const char *src = source_of(p);
    char *own = NULL, *at = r->buffer[k];
    size_t need = 0;
    uint64_t at_ns = clock_ns();
    cudaError_t rc = cudaEventSynchronize(r->sent[k]);

    count_time(r, PHASE_SEND, &at_ns);
    for (int i = 0; i < n; i++) need += (plane[i].bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (rc == cudaSuccess && need > BUFFER_BYTES) {
        rc = cudaHostAlloc((void **)&own, need, cudaHostAllocDefault);
        at = own;
    }
    if (rc != cudaSuccess) return rc;
    for (int i = 0; i < n; i++) {
        dst[i] = at;
        at += (plane[i].bytes + ALIGN - 1) / ALIGN * ALIGN;
    }
    map_pages(src, (size_t)(p->r1 - p->r0) * row_bytes_of(p->w));
    count_time(r, PHASE_READ, &at_ns);
    cu_pack_rows(p->w, src, p->r0, p->r1, dst);
    count_time(r, PHASE_PACK, &at_ns);
    for (int i = 0; i < n && rc == cudaSuccess; i++)
        if (plane[i].bytes)
            rc = cudaMemcpyAsync((char *)p->w->packed + plane[i].at, dst[i], plane[i].bytes,
                                 cudaMemcpyHostToDevice, r->stream);
    if (rc == cudaSuccess) rc = cudaEventRecord(r->sent[k], r->stream);
    if (own) {
        cudaStreamSynchronize(r->stream);
        cudaFreeHost(own);
    }
    count_time(r, PHASE_SEND, &at_ns);
    return rc;
}

/* A thread's loop: takes the next piece until none is left or one failed. The first error wins. */
static void *read_pieces(void *arg)
{
    struct reader *r = (struct reader *)arg;
    struct shared_work *s = r->s;
    cudaError_t rc = cudaSetDevice(s->c->device);
    int expected = 0;

    for (int i, k = 0; rc == cudaSuccess && !__atomic_load_n(&s->failed, __ATOMIC_RELAXED);
         k = (k + 1) % BUFFERS) {
        if ((i = __atomic_fetch_add(&s->next, 1, __ATOMIC_RELAXED)) >= s->n) break;
        rc = send_piece(r, &s->pieces[i], k);
    }
    uint64_t at_ns = clock_ns();
    if (rc == cudaSuccess) rc = cudaStreamSynchronize(r->stream);
    count_time(r, PHASE_SEND, &at_ns);
    for (int i = 0; i < PHASES; i++)
        __atomic_fetch_add(&s->spent[i], r->spent[i], __ATOMIC_RELAXED);
    if (rc != cudaSuccess)
        __atomic_compare_exchange_n(&s->failed, &expected, (int)rc, false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED);
    return NULL;
}

/* A stream, three pinned buffers, and an event for each that says its copy has ended. */
static cudaError_t reader_init(struct reader *r, struct shared_work *s)
{
    cudaError_t rc = cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking);

    r->s = s;
    for (int i = 0; i < BUFFERS && rc == cudaSuccess; i++) {
        rc = cudaMallocHost((void **)&r->buffer[i], BUFFER_BYTES);
        if (rc == cudaSuccess) rc = cudaEventCreateWithFlags(&r->sent[i], cudaEventDisableTiming);
    }
    return rc;
}

static void reader_release(struct reader *r)
{
    for (int i = 0; i < BUFFERS; i++) {
        if (r->sent[i]) cudaEventDestroy(r->sent[i]);
        if (r->buffer[i]) cudaFreeHost(r->buffer[i]);
    }
    if (r->stream) cudaStreamDestroy(r->stream);
}

/* The calling thread is the first reader. Fewer threads than wanted do the work too. */
static cudaError_t run_readers(struct shared_work *s)
{
    struct reader readers[MAX_READERS] = {};
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int n = cores < 1 ? 1 : cores > MAX_READERS ? MAX_READERS : (int)cores, ready = 0;
    cudaError_t rc = cudaSuccess;

    if (n > s->n) n = s->n;
    for (; ready < n; ready++)
        if ((rc = reader_init(&readers[ready], s)) != cudaSuccess) break;
    if (ready > 0) rc = cudaSuccess;
    for (int i = 1; i < ready; i++)
        readers[i].started =
            pthread_create(&readers[i].thread, NULL, read_pieces, &readers[i]) == 0;
    if (ready > 0) read_pieces(&readers[0]);
    for (int i = 1; i < ready; i++)
        if (readers[i].started) pthread_join(readers[i].thread, NULL);
    for (int i = 0; i < MAX_READERS; i++) reader_release(&readers[i]);
    return rc != cudaSuccess ? rc : (cudaError_t)s->failed;
}

/* ---- all added weights ---- */

/* After a failure no weight may keep an address in the freed slab. */
static void clear_added(struct cu_upload *u)
{
    for (int i = 0; i < u->n_added; i++) {
        u->added[i]->packed = NULL;
        u->added[i]->packed_bytes = 0;
    }
    u->n_added = 0;
}

/* One allocation for all added weights, and each weight's address in it. */
static int alloc_slab(struct cuda *c, struct cu_upload *u, struct slab *s, struct err *e)
{
    size_t bytes = 0;
    int rc;

    for (int i = 0; i < u->n_added; i++) {
        struct weight *w = u->added[i];
        w->packed_bytes = bytes_on_device(w);
        bytes += (w->packed_bytes + ALIGN - 1) / ALIGN * ALIGN;
    }
    *s = (struct slab){ NULL, bytes, u->n_added };
    if ((rc = cu_mem_alloc(c, (void **)&s->p, bytes, MEM_WEIGHTS, "the model", e)) != OK) return rc;
    bytes = 0;
    for (int i = 0; i < u->n_added; i++) {
        u->added[i]->packed = s->p + bytes;
        bytes += (u->added[i]->packed_bytes + ALIGN - 1) / ALIGN * ALIGN;
    }
    return OK;
}

/* Orders of columns are few and small: one copy each. */
static cudaError_t send_orders(const struct cu_upload *u)
{
    cudaError_t rc = cudaSuccess;

    for (int i = 0; i < u->n_added && rc == cudaSuccess; i++) {
        const struct weight *w = u->added[i];
        if (cu_order_id(w))
            rc = cudaMemcpy((char *)w->packed + cu_order_at(w), w->group->order,
                            (size_t)w->cols * sizeof(int32_t), cudaMemcpyHostToDevice);
    }
    return rc;
}

/* The phases overlap: the elapsed time is divided in proportion to the threads' time in each. */
static void count_phases(struct cuda *c, const struct shared_work *s, uint64_t all_ns)
{
    double sum = 0, each[PHASES];

    for (int i = 0; i < PHASES; i++) sum += (double)s->spent[i];
    for (int i = 0; i < PHASES; i++)
        each[i] = sum > 0 ? (double)all_ns * (double)s->spent[i] / sum : 0;
    cu_stat_add(&c->stats.read_ns, (uint64_t)each[PHASE_READ]);
    cu_stat_add(&c->stats.pack_ns, (uint64_t)each[PHASE_PACK]);
    cu_stat_add(&c->stats.upload_ns, (uint64_t)each[PHASE_SEND]);
}

int upload_finish(struct cuda *c, struct err *e)
{
    struct cu_upload *u = c->record->upload;
    struct shared_work s = {};
    struct slab slab = {};
    uint64_t start = clock_ns();
    cudaError_t rc;
    int code;

    if (!u || u->n_added == 0) return OK;
    if (!mem_ensure_int(&u->slabs, &u->cap_slabs, u->n_slabs + 1, sizeof *u->slabs)) {
        code = err_nomem(e, "the list of uploaded weights");
        goto out;
    }
    if ((code = alloc_slab(c, u, &slab, e)) != OK) goto out;
    s.c = c;
    s.n = split_into_pieces(u, NULL);
    if (!(s.pieces = (struct piece *)mem_array((size_t)s.n, sizeof *s.pieces))) {
        code = err_nomem(e, "the pieces of weights to upload");
        goto out;
    }
    split_into_pieces(u, s.pieces);
    rc = cudaMemset(slab.p, 0, slab.bytes); /* kernels read the gaps between weights, unused */
    if (rc == cudaSuccess) rc = cudaDeviceSynchronize();
    if (rc == cudaSuccess) rc = run_readers(&s);
    if (rc == cudaSuccess) rc = send_orders(u);
    count_phases(c, &s, clock_ns() - start);
    mem_free(s.pieces);
    if (rc != cudaSuccess) {
        cudaGetLastError();
        code = err_set(e, rc == cudaErrorMemoryAllocation ? E_DEVICE_MEMORY : E_DEVICE,
                       "%s: the upload of weights failed: %s", c->be.name, cudaGetErrorString(rc));
        goto out;
    }
    u->slabs[u->n_slabs++] = slab;
    slab.p = NULL;
    u->n_added = 0;
out:
    if (slab.p) cu_mem_free(c, slab.p, slab.bytes, MEM_WEIGHTS);
    if (code != OK) clear_added(u);
    return code;
}

/* A weight that was added and never uploaded is only removed from the list. */
void upload_drop(struct cuda *c, struct weight *w)
{
    struct cu_upload *u = c->record->upload;

    for (int i = 0; u && i < u->n_added; i++)
        if (u->added[i] == w) u->added[i--] = u->added[--u->n_added];
    for (int i = 0; u && i < u->n_slabs && w->packed; i++) {
        struct slab *s = &u->slabs[i];
        if ((char *)w->packed < s->p || (char *)w->packed >= s->p + s->bytes) continue;
        if (--s->n_weights == 0) {
            cu_mem_free(c, s->p, s->bytes, MEM_WEIGHTS);
            *s = u->slabs[--u->n_slabs];
        }
        break;
    }
    w->packed = NULL;
    w->packed_bytes = 0;
}

void upload_close(struct cuda *c)
{
    struct cu_upload *u = c->record ? c->record->upload : NULL;

    if (!u) return;
    mem_free(u->added);
    mem_free(u->slabs);
    mem_free(u->orders);
    mem_free(u);
    c->record->upload = NULL;
}
