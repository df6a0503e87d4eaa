#define RECUR recur_avx512
#include "kernel/cpu/recur_impl.h"
