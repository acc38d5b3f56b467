package early

// entry is where the kernel starts the process, if the linker was told so (-E). Nobody calls it.
//
//lint:ignore U1000 the linker's
func entry()
