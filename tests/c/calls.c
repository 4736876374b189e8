/* C functions that a compiler's -pg makes call a hook; what they compute tells
 * whether a hook has disturbed them. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#define NOINLINE __attribute__((noinline, noclone))

NOINLINE long c_leaf(long a, long b, long c, long d, long e, long f, long g)
{
	return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g;
}

NOINLINE long c_middle(long n)
{
	return c_leaf(n, 1, 2, 3, 4, 5, 6) - c_leaf(1, n, 0, 0, 0, 0, n);
}

NOINLINE long c_top(long n)
{
	return c_middle(n) + c_leaf(n, 0, 0, 0, 0, 0, 1);
}

/* The number of vector registers used is in al. */
NOINLINE double c_varargs(int n, ...)
{
	double sum = 0;
	va_list list;
	va_start(list, n);
	for (int i = 0; i < n; i++)
		sum += i % 2 ? va_arg(list, double) : va_arg(list, int);
	va_end(list);
	return sum;
}

NOINLINE double c_calls_varargs(void)
{
	return c_varargs(6, 1, 0.5, 2, 0.25, 3, 0.125);
}

/* The static chain is in r10. */
NOINLINE long c_nested(long n)
{
	long steps = 0;
	NOINLINE long inner(long m)
	{
		steps++;
		long below = m ? inner(m - 1) : 0;
		__asm__ volatile("" : "+r"(below));
		return below + n;
	}
	return inner(5) + steps;
}

struct large {
	long words[9];
};

NOINLINE struct large c_large(struct large in, long by)
{
	for (int i = 0; i < 9; i++)
		in.words[i] = in.words[i] * by + i;
	return in;
}

NOINLINE long c_calls_large(long by)
{
	struct large in = { { 1, 2, 3, 4, 5, 6, 7, 8, 9 } };
	long sum = 0;
	in = c_large(c_large(in, by), 3);
	for (int i = 0; i < 9; i++)
		sum = sum * 3 + in.words[i];
	return sum;
}

static jmp_buf point;

NOINLINE long c_dive(long n)
{
	if (n == 0)
		longjmp(point, 77);
	n = c_dive(n - 1);
	/* No loop instead of the calls. */
	__asm__ volatile("" : "+r"(n));
	return n + 1;
}

NOINLINE long c_jumper(long n)
{
	volatile long before = n;
	int thrown = setjmp(point);
	if (thrown)
		return thrown + before;
	return c_dive(n);
}

static size_t lowest;

NOINLINE long c_pong(long n, long sum);

static inline void note(void)
{
	size_t here;
	__asm__ volatile("mov %%rsp, %0" : "=r"(here));
	if (here < lowest)
		lowest = here;
}

NOINLINE long c_ping(long n, long sum)
{
	note();
	if (n == 0)
		return sum;
	return c_pong(n - 1, (long)((unsigned long)sum * 3));
}

NOINLINE long c_pong(long n, long sum)
{
	note();
	if (n == 0)
		return sum + 1;
	return c_ping(n - 1, (long)((unsigned long)sum * 5 + 1));
}

/* How far the stack reached in `n` tail calls. */
NOINLINE long c_tail(long n, size_t *reached)
{
	lowest = (size_t)-1;
	long sum = c_ping(n, 1) + 1;
	*reached = lowest;
	return sum;
}

NOINLINE void c_nothing(void)
{
	__asm__ volatile("");
}
