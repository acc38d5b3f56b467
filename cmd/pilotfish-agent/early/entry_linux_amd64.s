#include "textflag.h"

#define SYS_readlink 89
#define SYS_execve 59

// ROOM is how much of the stack is used: the path of the binary that runs (PATH_MAX), and a name in place of its last part.
#define PATH 4096
#define ROOM (PATH+24)

// entry is where the kernel starts the process, if the linker was told so (-E): before the runtime of Go, which takes longer
// than the whole command. It does what the init of this package does for the commands iptables and istio-iptables, and else,
// or if there is no small binary, begins the program as it would have begun without it.
//
// The kernel leaves at SP: argc, the arguments, 0, the environment, 0. What is read here beyond the end of an argument is
// still of the stack, as the kernel puts the name of the program and eight zero bytes behind all of them.
TEXT ·entry(SB),NOSPLIT|NOFRAME|TOPFRAME,$0
	MOVQ SP, R12
	MOVQ 0(R12), R13
	CMPQ R13, $2
	JLT  program
	MOVQ 16(R12), AX
	MOVQ 0(AX), BX
	LEAQ names<>(SB), CX
	CMPQ BX, 0(CX)         // iptables
	JNE  longer
	CMPB 8(AX), $0
	JEQ  hand
	JMP  program
longer:
	CMPQ BX, 8(CX)         // istio-ip
	JNE  program
	MOVL 8(AX), BX
	CMPL BX, 16(CX)        // tabl
	JNE  program
	MOVW 12(AX), BX
	CMPW BX, 20(CX)        // es
	JNE  program
	CMPB 14(AX), $0
	JNE  program

hand:
	SUBQ $ROOM, SP
	LEAQ self<>(SB), DI
	MOVQ SP, SI
	MOVQ $PATH, DX
	MOVQ $SYS_readlink, AX
	SYSCALL
	TESTQ AX, AX
	JLE  undo
	CMPQ AX, $PATH         // it may be longer
	JGE  undo
	MOVQ AX, BX
folder:
	CMPB -1(SP)(BX*1), $47 // a slash
	JEQ  found
	DECQ BX
	JNZ  folder
	JMP  undo
found:
	LEAQ 0(SP)(BX*1), DI
	LEAQ small<>(SB), SI
	MOVQ 0(SI), AX
	MOVQ AX, 0(DI)
	MOVQ 8(SI), AX
	MOVQ AX, 8(DI)
	MOVQ 16(SI), AX
	MOVQ AX, 16(DI)
	MOVQ 16(R12), R14
	MOVQ SI, 16(R12)       // its first argument is its name, in place of the command's
	MOVQ SP, DI
	LEAQ 16(R12), SI
	LEAQ 16(R12)(R13*8), DX
	MOVQ $SYS_execve, AX
	SYSCALL
	MOVQ R14, 16(R12)      // it is not there
undo:
	MOVQ R12, SP
program:
	JMP  _rt0_amd64_linux(SB)

DATA names<>+0(SB)/8, $"iptables"
DATA names<>+8(SB)/8, $"istio-ip"
DATA names<>+16(SB)/8, $"tables\x00\x00"
GLOBL names<>(SB), RODATA|NOPTR, $24

DATA self<>+0(SB)/8, $"/proc/se"
DATA self<>+8(SB)/8, $"lf/exe\x00\x00"
GLOBL self<>(SB), RODATA|NOPTR, $16

DATA small<>+0(SB)/8, $"pilotfis"
DATA small<>+8(SB)/8, $"h-iptabl"
DATA small<>+16(SB)/8, $"es\x00\x00\x00\x00\x00\x00"
GLOBL small<>(SB), RODATA|NOPTR, $24
