// Go programs take their random numbers from bcryptprimitives.dll, which Wine has
// only since version 8.13. This one asks advapi32 (RtlGenRandom) for them.
#include <windows.h>

BOOLEAN NTAPI SystemFunction036(PVOID buffer, ULONG length);

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE buffer, SIZE_T length) {
	return SystemFunction036(buffer, (ULONG)length);
}
