package main

import "syscall"

func cpuModel() string {
	name, _ := syscall.Sysctl("machdep.cpu.brand_string")
	return name
}
