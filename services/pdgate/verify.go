package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pdgate/pdgate/services/verify/command"
)

// exitError ends the process with a code, when all that is to be said was said.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

func (a *app) verifyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "verify",
		Short: "Verify an audit bundle, a proof, a receipt or a checkpoint, offline",
		Long:  "Verify an audit bundle, a proof, a receipt or a checkpoint, offline.\nSee pdgate verify --help.",
		// The flags are those of services/verify, which is this command on its own and
		// small enough to be read by whoever has to trust it.
		DisableFlagParsing: true,
		Args:               cobra.ArbitraryArgs,
		// Neither configuration nor environment has a say in what verifies.
		PersistentPreRunE: func(*cobra.Command, []string) error { return nil },
		RunE: func(_ *cobra.Command, args []string) error {
			if code := command.Run("pdgate verify", args, a.stdout, a.stderr); code != 0 {
				return &exitError{code}
			}
			return nil
		},
	}
}
