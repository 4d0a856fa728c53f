"""The words that everyone speaks."""

from llenvs_fast.core.environment import BatchEnvironment, Environment, EnvironmentSpec, StepResult
from llenvs_fast.core.errors import Failure, LLEnvsError, Phase
from llenvs_fast.core.registry import Registry, environment_registry
from llenvs_fast.core.reward import (
    FormatReward,
    RewardBundle,
    RewardFunction,
    RewardSignal,
    RewardType,
    Signal,
    SignalBundle,
    StepPenalty,
)
from llenvs_fast.core.state import Action, ImageContent, Observation, ObservationContent, State, StateMetadata
from llenvs_fast.core.tools import (
    ToolCall,
    ToolDefinition,
    ToolParameter,
    ToolParameterType,
    ToolResult,
    ToolResultStatus,
)
from llenvs_fast.core.trajectory import Checkpoint, Trajectory, Transition

__all__ = [
    "Action",
    "BatchEnvironment",
    "Checkpoint",
    "Environment",
    "EnvironmentSpec",
    "Failure",
    "FormatReward",
    "ImageContent",
    "LLEnvsError",
    "Observation",
    "ObservationContent",
    "Phase",
    "Registry",
    "RewardBundle",
    "RewardFunction",
    "RewardSignal",
    "RewardType",
    "Signal",
    "SignalBundle",
    "State",
    "StateMetadata",
    "StepPenalty",
    "StepResult",
    "ToolCall",
    "ToolDefinition",
    "ToolParameter",
    "ToolParameterType",
    "ToolResult",
    "ToolResultStatus",
    "Trajectory",
    "Transition",
    "environment_registry",
]
