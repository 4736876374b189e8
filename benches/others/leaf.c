// One function, called over and over: leaf ROUNDS CALLS prints the median
// nanoseconds of a call. What traces it is the compiler's flags' affair.
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define UNTRACED \
    __attribute__((no_instrument_function, xray_never_instrument, noinline))

__attribute__((noinline, xray_always_instrument)) unsigned leaf(unsigned x)
{
    __asm__ volatile("" : "+r"(x));
    return x + 1;
}

#ifdef HANDLERS
// What -finstrument-functions calls.
UNTRACED void __cyg_profile_func_enter(void *func, void *caller)
{
    __asm__ volatile("" : : "r"(func), "r"(caller));
}

UNTRACED void __cyg_profile_func_exit(void *func, void *caller)
{
    __asm__ volatile("" : : "r"(func), "r"(caller));
}
#endif

#ifdef REPLACED
// What -mfentry calls: the least that a tracer can do that replaces return
// addresses. They are kept on a stack of their own, and that is all.
void *addresses[64], **top = addresses;

__asm__(".globl __fentry__\n"
        "__fentry__:\n"
        "  mov top(%rip), %r11\n"
        "  mov 8(%rsp), %r10\n"
        "  mov %r10, (%r11)\n"
        "  add $8, %r11\n"
        "  mov %r11, top(%rip)\n"
        "  lea back(%rip), %r10\n"
        "  mov %r10, 8(%rsp)\n"
        "  ret\n"
        "back:\n"
        "  mov top(%rip), %r11\n"
        "  sub $8, %r11\n"
        "  mov %r11, top(%rip)\n"
        "  jmp *(%r11)\n");
#endif

UNTRACED static int order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

UNTRACED int main(int argc, char **argv)
{
    unsigned long rounds = argc > 1 ? strtoul(argv[1], 0, 10) : 0;
    unsigned long calls = argc > 2 ? strtoul(argv[2], 0, 10) : 0;
    double *times = calloc(rounds, sizeof *times);
    unsigned x = 0;
    if (!rounds || !calls || !times)
        return 2;
    for (unsigned long round = 0; round < rounds; round++) {
        struct timespec begun, ended;
        clock_gettime(CLOCK_MONOTONIC, &begun);
        for (unsigned long i = 0; i < calls; i++)
            x = leaf(x);
        clock_gettime(CLOCK_MONOTONIC, &ended);
        times[round] = ((ended.tv_sec - begun.tv_sec) * 1e9
                        + (ended.tv_nsec - begun.tv_nsec)) / calls;
    }
    qsort(times, rounds, sizeof *times, order);
    printf("%.3f\n", times[rounds / 2]);
    return x != (unsigned)(rounds * calls);
}
