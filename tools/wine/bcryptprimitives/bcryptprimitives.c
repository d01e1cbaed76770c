// Go programs get random numbers from bcryptprimitives.dll, which Wine provides only
// since version 8.13. This replacement calls RtlGenRandom of advapi32, which is
// exported as SystemFunction036.
#include <windows.h>

BOOLEAN NTAPI SystemFunction036(PVOID buffer, ULONG length);

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE buffer, SIZE_T length) {
	return SystemFunction036(buffer, (ULONG)length);
}
