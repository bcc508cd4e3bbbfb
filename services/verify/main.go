// Command verify checks what pdgate's log is said to hold, offline: a bundle, a
// proof, a receipt, a checkpoint, or that a log only grew. It needs nothing of
// pdgate but package audit; `pdgate verify` is the same.
package main

import (
	"os"

	"github.com/pdgate/pdgate/services/verify/command"
)

func main() { os.Exit(command.Run("verify", os.Args[1:], os.Stdout, os.Stderr)) }
