package server

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// applyConfigFile sets the flags that a YAML file names, other than the flags that the command line
// has set. The file maps the names of flags, without dashes in front, to their values; a flag that
// takes several has a list, or a mapping if it takes name=value.
func applyConfigFile(name string, flags *pflag.FlagSet) error {
	content, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("cannot read --config: %w", err)
	}
	var values map[string]any
	if err := yaml.UnmarshalStrict(content, &values); err != nil {
		return fmt.Errorf("cannot use --config: %s is not a YAML mapping of flags to values: %w",
			name, err)
	}
	given := map[string]bool{}
	flags.Visit(func(f *pflag.Flag) { given[f.Name] = true })
	for _, key := range slices.Sorted(maps.Keys(values)) {
		flag := flags.Lookup(key)
		if flag == nil || key == "config" || key == "help" {
			return fmt.Errorf("cannot use --config: %s sets %q, which is not a flag", name, key)
		}
		if given[key] {
			continue
		}
		if err := setFlag(flags, flag, values[key]); err != nil {
			return fmt.Errorf("cannot use --config: %s: %w", name, err)
		}
	}
	return nil
}

func setFlag(flags *pflag.FlagSet, flag *pflag.Flag, value any) error {
	var text string
	switch value := value.(type) {
	case nil:
		return fmt.Errorf("%s has no value", flag.Name)
	case []any:
		items := make([]string, len(value))
		for i := range value {
			items[i] = fmt.Sprint(value[i])
		}
		if slice, ok := flag.Value.(pflag.SliceValue); ok {
			flag.Changed = true
			return slice.Replace(items)
		}
		text = strings.Join(items, ",")
	case map[string]any:
		var items []string
		for _, k := range slices.Sorted(maps.Keys(value)) {
			items = append(items, fmt.Sprintf("%s=%v", k, value[k]))
		}
		text = strings.Join(items, ",")
	case float64:
		// YAML's integers arrive as floating-point numbers, and would be printed with an exponent
		// if they are large.
		text = strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%f", value), "0"), ".")
	default:
		text = fmt.Sprint(value)
	}
	return flags.Set(flag.Name, text)
}
