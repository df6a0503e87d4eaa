/* comm_ipc.cu - a sum over the members of a group in one kernel: every member copies its numbers
 * into memory that all others have mapped, raises a flag at each of them, waits for theirs, and adds
 * up all contributions in the order of ranks. So all members get the same bits.
 *
 * Block b of every member handles the same part of the numbers and waits for block b of the others
 * only. The two halves of the shared memory are used in turn: a member writes a half again two sums
 * later, and it has then seen the flags of the sum between, which the others raise after they have
 * read the half. Epochs are counted on the device, so that a captured graph can be replayed.
 *
 * A wait ends with the deadline, or when the host says that the gang has ended; from then on sums
 * are left out, and the host reports the reason. */
#include "kernel/cuda/comm.cuh"

#define LOOKS 512 /* polls of a flag between looks at the clock and at the host's word */

static __device__ __forceinline__ unsigned load_flag(const unsigned *p)
{
    unsigned v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

static __device__ __forceinline__ void store_flag(unsigned *p, unsigned v)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

static __device__ __forceinline__ uint64_t now_ns(void)
{
    uint64_t v;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(v));
    return v;
}

/* false: the wait has failed. A peer may be one sum ahead already. */
static __device__ bool wait_flag(const struct ipc_args &a, int peer, const unsigned *flag,
                                 unsigned epoch)
{
    uint64_t start = now_ns();

    for (unsigned i = 1; (int)(load_flag(flag) - epoch) < 0; i++) {
        if (i % LOOKS) continue;
        if (*(volatile int *)a.dead || *(volatile int *)&a.status->stop) return false;
        if (a.timeout_ns && now_ns() - start > a.timeout_ns) {
            *(volatile int *)&a.status->late = 1 + peer;
            return false;
        }
    }
    return true;
}

/* Numbers [begin, end) of a block, four at a time where the addresses allow it. */
template <typename T>
static __device__ void copy_part(float *to, const float *from, size_t begin, size_t end)
{
    constexpr size_t n = sizeof(T) / sizeof(float);

    for (size_t i = begin / n + threadIdx.x; i < end / n; i += IPC_THREADS)
        ((T *)to)[i] = ((const T *)from)[i];
}

static __device__ __forceinline__ void add_to(float &v, float w) { v += w; }
static __device__ __forceinline__ void add_to(float4 &v, float4 w)
{
    v.x += w.x, v.y += w.y, v.z += w.z, v.w += w.w;
}

/* The others' numbers are read past the caches of this SM, which may have those of an earlier sum. */
template <typename T>
static __device__ void add_part(const struct ipc_args &a, size_t half, float *x, size_t begin,
                                size_t end)
{
    constexpr size_t n = sizeof(T) / sizeof(float);

    for (size_t i = begin / n + threadIdx.x; i < end / n; i += IPC_THREADS) {
        T v = __ldcv((const T *)(a.data[0] + half) + i);
        for (int r = 1; r < a.size; r++) add_to(v, __ldcv((const T *)(a.data[r] + half) + i));
        ((T *)x)[i] = v;
    }
}

/* Does not let the next kernel start early: it would take the place of blocks that others wait for. */
template <typename T>
static __global__ void __launch_bounds__(IPC_THREADS)
    sum_kernel(const struct ipc_args a, float *x, size_t n)
{
    __shared__ unsigned epoch;
    __shared__ int bad;
    const int b = (int)blockIdx.x, t = (int)threadIdx.x;
    /* Numbers of a block: equal for all members, whichever T their addresses allow. */
    const size_t part = ((n + 3) / 4 + IPC_BLOCKS - 1) / IPC_BLOCKS * 4,
                 begin = min((size_t)b * part, n), end = min(begin + part, n);
    uint64_t start = 0;
    size_t half;

    cu_wait_previous();
    if (t == 0) {
        start = now_ns();
        epoch = ++a.epochs[b];
        bad = *(volatile int *)a.dead;
    }
    __syncthreads();
    if (bad) return;
    half = (epoch & 1) * a.cap;
    copy_part<T>(a.data[a.rank] + half, x, begin, end);
    __threadfence_system();
    __syncthreads();
    if (t < a.size && t != a.rank) {
        store_flag(a.flags[t] + a.rank * IPC_BLOCKS + b, epoch);
        if (!wait_flag(a, t, a.flags[a.rank] + t * IPC_BLOCKS + b, epoch)) {
            bad = 1;
            *(volatile int *)a.dead = 1;
        }
    }
    __syncthreads();
    if (bad) return;
    add_part<T>(a, half, x, begin, end);
    if (b == 0 && t == 0) { /* one writer */
        *a.ns += now_ns() - start;
        *(volatile uint64_t *)&a.status->ns = *a.ns;
    }
}

void ipc_sum(struct cuda *c, const struct ipc_args *a, float *x, size_t n)
{
    bool four = n % 4 == 0 && (uintptr_t)x % 16 == 0;

    cu_launch(c, "sum ipc", four ? sum_kernel<float4> : sum_kernel<float>, dim3(IPC_BLOCKS),
              dim3(IPC_THREADS), 0, *a, x, n);
}
