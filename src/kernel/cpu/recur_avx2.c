#define RECUR recur_avx2
#include "kernel/cpu/recur_impl.h"
