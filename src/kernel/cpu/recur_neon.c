#define RECUR recur_neon
#include "kernel/cpu/recur_impl.h"
