package v1alpha1

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/conversion"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
	v1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
)

// StructuredAnnotation holds the steps and parameters of a pipeline, as v1 has them in JSON, if the
// flat form cannot express them.
//
// A client that reads a pipeline in this version and writes it back changes nothing. If it changes
// a command, the step keeps its name and whatever else it has; see [structured].
const StructuredAnnotation = ci.StructuredAnnotation

// kept is the content of the annotation.
// +k8s:openapi-gen=false
// +k8s:deepcopy-gen=false
type kept struct {
	Parameters []v1.Parameter `json:"parameters,omitempty"`
	Steps      []v1.Step      `json:"steps,omitempty"`
	// Annotation is the value that the pipeline itself has for the annotation, if any. It is
	// refused where it is new, but may have been stored before. It is not read as steps and
	// parameters.
	Annotation *string `json:"annotation,omitempty"`
}

// Convert_ci_Pipeline_To_v1alpha1_Pipeline flattens a pipeline, and annotates it with what is lost
// by that.
func Convert_ci_Pipeline_To_v1alpha1_Pipeline(in *ci.Pipeline, out *Pipeline,
	s conversion.Scope) error {
	if err := autoConvert_ci_Pipeline_To_v1alpha1_Pipeline(in, out, s); err != nil {
		return err
	}
	var back ci.PipelineSpec
	structured(&out.Spec, &ci.PipelineSpec{}, &back)
	own, annotated := in.Annotations[StructuredAnnotation]
	if !annotated && equality.Semantic.DeepEqual(back.Steps, in.Spec.Steps) &&
		equality.Semantic.DeepEqual(back.Parameters, in.Spec.Parameters) {
		return nil
	}
	var spec v1.PipelineSpec
	if err := v1.Convert_ci_PipelineSpec_To_v1_PipelineSpec(&in.Spec, &spec, s); err != nil {
		return err
	}
	k := kept{Parameters: spec.Parameters, Steps: spec.Steps}
	if annotated {
		k.Annotation = &own
	}
	text, err := json.Marshal(k)
	if err != nil {
		return fmt.Errorf("cannot keep the steps of a pipeline in its annotation %s: %w",
			StructuredAnnotation, err)
	}
	// The conversion shares the metadata with its source.
	out.Annotations = maps.Clone(out.Annotations)
	if out.Annotations == nil {
		out.Annotations = map[string]string{}
	}
	out.Annotations[StructuredAnnotation] = string(text)
	return nil
}

// Convert_v1alpha1_Pipeline_To_ci_Pipeline makes a pipeline of a flat one and its annotation.
func Convert_v1alpha1_Pipeline_To_ci_Pipeline(in *Pipeline, out *ci.Pipeline,
	s conversion.Scope) error {
	if err := autoConvert_v1alpha1_Pipeline_To_ci_Pipeline(in, out, s); err != nil {
		return err
	}
	text, ok := in.Annotations[StructuredAnnotation]
	if !ok {
		return nil
	}
	var k kept
	if err := json.Unmarshal([]byte(text), &k); err != nil {
		return fmt.Errorf("the annotation %s cannot be read: %w; mend or remove it",
			StructuredAnnotation, err)
	}
	var before ci.PipelineSpec
	if err := v1.Convert_v1_PipelineSpec_To_ci_PipelineSpec(&v1.PipelineSpec{Parameters: k.Parameters, Steps: k.Steps}, &before, s); err != nil {
		return err
	}
	structured(&in.Spec, &before, &out.Spec)
	out.Annotations = maps.Clone(in.Annotations)
	if k.Annotation != nil {
		out.Annotations[StructuredAnnotation] = *k.Annotation
	} else {
		delete(out.Annotations, StructuredAnnotation)
	}
	return nil
}

// Convert_ci_PipelineSpec_To_v1alpha1_PipelineSpec flattens a spec.
func Convert_ci_PipelineSpec_To_v1alpha1_PipelineSpec(in *ci.PipelineSpec, out *PipelineSpec,
	s conversion.Scope) error {
	if err := autoConvert_ci_PipelineSpec_To_v1alpha1_PipelineSpec(in, out, s); err != nil {
		return err
	}
	out.Commands, out.Parameters = flat(in)
	return nil
}

// Convert_v1alpha1_PipelineSpec_To_ci_PipelineSpec makes a spec of a flat one.
func Convert_v1alpha1_PipelineSpec_To_ci_PipelineSpec(in *PipelineSpec, out *ci.PipelineSpec,
	s conversion.Scope) error {
	if err := autoConvert_v1alpha1_PipelineSpec_To_ci_PipelineSpec(in, out, s); err != nil {
		return err
	}
	structured(in, &ci.PipelineSpec{}, out)
	return nil
}

// flat returns the flat form of steps and parameters.
func flat(spec *ci.PipelineSpec) (commands []string, parameters map[string]string) {
	for i := range spec.Steps {
		commands = append(commands, line(&spec.Steps[i]))
	}
	if len(spec.Parameters) > 0 {
		parameters = make(map[string]string, len(spec.Parameters))
	}
	for _, p := range spec.Parameters {
		parameters[p.Name] = ""
		if p.Default != nil {
			parameters[p.Name] = *p.Default
		}
	}
	return commands, parameters
}

// structured makes the steps and parameters of a flat form, with all that it does not say taken
// from the structured form that it had before, if any:
//
//   - If the flat form is that of the one before, it is the one before.
//   - A command that is a step's line is that step, wherever it was before.
//   - A command in the place of a step that has no command any more is that step with another
//     command.
//   - Any other command is a new step.
//   - A parameter keeps its description, and its place; new ones come after those, by name.
func structured(in *PipelineSpec, before, out *ci.PipelineSpec) {
	if commands, parameters := flat(before); slices.Equal(commands, in.Commands) &&
		maps.Equal(parameters, in.Parameters) {
		out.Steps, out.Parameters = before.Steps, before.Parameters
		return
	}
	out.Steps = structuredSteps(in.Commands, before.Steps)
	out.Parameters = structuredParameters(in.Parameters, before.Parameters)
}

func structuredSteps(commands []string, before []ci.Step) []ci.Step {
	steps := make([]ci.Step, len(commands))
	done := make([]bool, len(commands))
	used := make([]bool, len(before))
	names := map[string]bool{}
	take := func(i, from int) {
		steps[i] = before[from]
		done[i], used[from], names[before[from].Name] = true, true, true
	}
	for i, command := range commands {
		if i < len(before) && line(&before[i]) == command {
			take(i, i)
		}
	}
	for i, command := range commands {
		for from := range before {
			if !done[i] && !used[from] && line(&before[from]) == command {
				take(i, from)
			}
		}
	}
	for i, command := range commands {
		if !done[i] && i < len(before) && !used[i] {
			take(i, i)
			steps[i].Command, steps[i].Shell = shell(command), ""
		}
	}
	for i, command := range commands {
		if done[i] {
			continue
		}
		name := fmt.Sprintf("step-%d", i+1)
		for n := len(commands) + 1; names[name]; n++ {
			name = fmt.Sprintf("step-%d", n)
		}
		names[name] = true
		steps[i] = ci.Step{Name: name, Command: shell(command)}
	}
	return steps
}

func structuredParameters(values map[string]string, before []ci.Parameter) []ci.Parameter {
	var parameters []ci.Parameter
	known := map[string]bool{}
	for _, p := range before {
		value, ok := values[p.Name]
		if !ok || known[p.Name] {
			continue
		}
		known[p.Name] = true
		if was := p.Default; was == nil && value != "" || was != nil && value != *was {
			p.Default = defaultOf(value)
		}
		parameters = append(parameters, p)
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if !known[name] {
			parameters = append(parameters,
				ci.Parameter{Name: name, Default: defaultOf(values[name])})
		}
	}
	return parameters
}

func defaultOf(value string) *string {
	if value == "" {
		return nil
	}
	return &value
}

// shell is the command that runs a line.
func shell(line string) []string { return []string{"sh", "-c", line} }

// line is the line for the shell that does what a step does.
func line(s *ci.Step) string {
	switch {
	case len(s.Command) == 0:
		return s.Shell
	case len(s.Command) == 3 && s.Command[0] == "sh" && s.Command[1] == "-c":
		return s.Command[2]
	}
	words := make([]string, len(s.Command))
	for i, word := range s.Command {
		words[i] = quote(word)
	}
	return strings.Join(words, " ")
}

// quote returns the word as the shell has to be given it.
func quote(word string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./_-"
	if word != "" && strings.Trim(word, plain) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
