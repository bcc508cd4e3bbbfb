package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pdgate/pdgate/schemas"
)

func (a *app) schemasCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schemas [NAME]",
		Short: "List the embedded schemas, or print one",
		Long: `Without an argument, schemas lists the JSON Schemas of all events, commands and
messages, the AsyncAPI description of the NATS API and the OpenAPI description
of the gateway. With one it prints that file.`,
		Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return schemas.Names(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				for _, n := range schemas.Names() {
					if _, err := fmt.Fprintln(a.stdout, n); err != nil {
						return err
					}
				}
				return nil
			}
			b, err := schemas.Read(args[0])
			if err != nil {
				return &usageError{fmt.Errorf("no schema is named %q%s", args[0], didYouMean(args[0], schemas.Names())), cmd}
			}
			_, err = a.stdout.Write(b)
			return err
		},
	}
}
