/* gemm_mma.cuh - tensor-core products for the packed GEMM: wgmma on Hopper, mma.sync before, behind
 * the same functions.
 *
 * Weights are the A operand and come from registers, 16 rows for each warp. Activations are the B
 * operand and come from shared memory: rows of 64 F16 (128 bytes), 16-byte pieces XOR-swizzled by
 * the row's last three bits. In a step of 16 columns lane l has, with g = l / 4 and t = l % 4:
 *
 *     a[0]: row g,     columns 2t, 2t + 1        a[2]: row g,     columns 2t + 8, 2t + 9
 *     a[1]: row g + 8, the same                  a[3]: row g + 8, the same
 *     d[j][0..1]: row g, tokens 8j + 2t, + 1     d[j][2..3]: row g + 8, the same
 *
 * This register layout is the same for both instructions. wgmma is asynchronous: mma_begin,
 * mma_commit and mma_wait are its fences and groups, and do nothing for mma.sync. */
#ifndef TERN_KERNEL_CUDA_GEMM_MMA_CUH
#define TERN_KERNEL_CUDA_GEMM_MMA_CUH

#include "kernel/cuda/copy.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define GEMM_WGMMA 1
#else
#define GEMM_WGMMA 0
#endif

/* What cp.async wrote becomes visible to wgmma (async proxy). */
__device__ __forceinline__ void copy_fence(void)
{
#if GEMM_WGMMA
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* ---- products ---- */

#if GEMM_WGMMA
__device__ __forceinline__ void mma_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void mma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> __device__ __forceinline__ void mma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

#define D4(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define D16(i) D4(i), D4(i + 1), D4(i + 2), D4(i + 3)
#define D64(i) D16(i), D16(i + 4), D16(i + 8), D16(i + 12)
#define WGMMA(n, regs, rest, add)                                              \
    "{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\n"                           \
    "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.f16.f16 {" regs "}, " rest \
    ", p, 1, 1, 0;\n}\n"
#define A4 "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add)

__device__ __forceinline__ void wgmma(float (&d)[2][4], const uint32_t (&a)[4], uint64_t b, int add)
{
    asm volatile(WGMMA(16, "%0,%1,%2,%3,%4,%5,%6,%7", "{%8,%9,%10,%11}, %12", "%13")
                 : D4(0), D4(1)
                 : A4);
}
__device__ __forceinline__ void wgmma(float (&d)[4][4], const uint32_t (&a)[4], uint64_t b, int add)
{
    asm volatile(WGMMA(32, "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15",
                       "{%16,%17,%18,%19}, %20", "%21")
                 : D16(0)
                 : A4);
}
__device__ __forceinline__ void wgmma(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b, int add)
{
    asm volatile(WGMMA(64,
                       "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                       "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31",
                       "{%32,%33,%34,%35}, %36", "%37")
                 : D16(0), D16(4)
                 : A4);
}
__device__ __forceinline__ void wgmma(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b,
                                      int add)
{
    asm volatile(WGMMA(128,
                       "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                       "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                       "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                       "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63",
                       "{%64,%65,%66,%67}, %68", "%69")
                 : D64(0)
                 : A4);
}
__device__ __forceinline__ void wgmma(float (&d)[32][4], const uint32_t (&a)[4], uint64_t b,
                                      int add)
{
    asm volatile(
        WGMMA(256,
              "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
              "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
              "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
              "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
              "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
              "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
              "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
              "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127",
              "{%128,%129,%130,%131}, %132", "%133")
        : D64(0), D64(16)
        : A4);
}
#undef D4
#undef D16
#undef D64
#undef WGMMA
#undef A4

/* d += a times the 16 columns of step `step` of the activations at b; add false: d = that
 * product. */
template <int NT>
__device__ __forceinline__ void mma_step(float (&d)[NT / 8][4], const uint32_t (&a)[4], uint32_t b,
                                         int step, bool add)
{
    uint64_t desc = (uint64_t)((b + step * 32) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
    wgmma(d, a, desc, add);
}
#else
__device__ __forceinline__ void mma_begin(void) {}
__device__ __forceinline__ void mma_commit(void) {}
template <int N> __device__ __forceinline__ void mma_wait(void) {}

__device__ __forceinline__ void mma_8(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                      uint32_t b1)
{
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <int NT>
__device__ __forceinline__ void mma_step(float (&d)[NT / 8][4], const uint32_t (&a)[4], uint32_t b,
                                         int step, bool add)
{
    int lane = threadIdx.x % 32, row = lane % 8 + lane / 16 * 8, piece = step * 2 + lane / 8 % 2;
    uint32_t at = b + row * 128 + (piece ^ row % 8) * 16;
#pragma unroll
    for (int j = 0; j < NT / 16; j++) {
        uint32_t v[4];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                     : "r"(at + j * 2048));
        if (!add)
            for (int i = 0; i < 4; i++) d[2 * j][i] = d[2 * j + 1][i] = 0;
        mma_8(d[2 * j], a, v[0], v[1]);
        mma_8(d[2 * j + 1], a, v[2], v[3]);
    }
}
#endif
#endif
