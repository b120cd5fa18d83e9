package commands

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/rowkeeper/rowkeeper/pkg/server"
	"github.com/rowkeeper/rowkeeper/pkg/support/version"
)

func newVersionCommand(p server.Program) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  " + p.Name + " version -o json",
		Args:    server.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			info := version.Get()
			var text []byte
			var err error
			switch output {
			case "":
				text = []byte(p.Name + " " + info.String() + "\n")
			case "json":
				text, err = json.MarshalIndent(info, "", "  ")
				text = append(text, '\n')
			case "yaml":
				text, err = yaml.Marshal(info)
			default:
				return server.UsageError{Err: fmt.Errorf("--output %q is neither json nor yaml",
					output)}
			}
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json or yaml. Default: one line.")
	return cmd
}
